package io.github.lakegate.caches;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.delta.actions.AddFile;

/** A file of a table, and what was read of its statistics: they never change. */
public final class KnownFile {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The objects of an `add`, without texts. */
  private static final int OBJECTS_BYTES = 400;

  public final AddFile add;
  private final Map<String, List<JsonNode>> bounds = new ConcurrentHashMap<>(2);

  public KnownFile(AddFile add) {
    this.add = add;
  }

  /** The smallest and the largest value of a column, as in the statistics; missing nodes if they are not known. */
  public List<JsonNode> bounds(String column) {
    List<JsonNode> known = bounds.get(column);
    if (known == null) {
      known = read(column);
      bounds.put(column, known);
    }
    return known;
  }

  private List<JsonNode> read(String column) {
    try {
      JsonNode statistics = JSON.readTree(add.stats() == null || add.stats().isEmpty() ? "{}" : add.stats());
      return List.of(statistics.path("minValues").path(column), statistics.path("maxValues").path(column));
    } catch (IOException damaged) {
      return List.of(JSON.missingNode(), JSON.missingNode());
    }
  }

  /** An estimate of its memory. */
  long heapBytes() {
    return OBJECTS_BYTES + 2L * add.path().length() + (add.stats() == null ? 0 : add.stats().length());
  }
}
