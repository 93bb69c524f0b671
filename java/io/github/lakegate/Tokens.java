package io.github.lakegate;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.List;

/** The tokens in the lines of a commit, see `turns/protocol/fencing.py`. */
final class Tokens {
  private static final int EPOCH_SHIFT = 35; // below it: batch and step
  private static final ObjectMapper JSON = new ObjectMapper();

  private Tokens() {}

  /**
   * True if a commit changes rows. A commit that only moves rows to other files, or changes the table's definition, does not:
   * repeating it changes nothing, or fails.
   */
  static boolean changesRows(List<String> lines) {
    for (String line : lines) {
      boolean isOfFile = line.startsWith("{\"add\"") || line.startsWith("{\"remove\"");
      // Statistics and other texts within an action have their quotes escaped.
      if (isOfFile && line.contains("\"dataChange\":true")) return true;
    }
    return false;
  }

  /** True if the lines have a token of this id and epoch. */
  static boolean isIn(List<String> lines, String tokenId, long epoch) throws IOException {
    for (String line : lines) {
      if (!line.startsWith("{\"txn\"")) continue;
      JsonNode token = JSON.readTree(line).get("txn");
      boolean isOfTurn = Long.parseLong(token.get("version").asText()) >> EPOCH_SHIFT == epoch;
      if (isOfTurn && token.get("appId").asText().equals(tokenId)) return true;
    }
    return false;
  }
}
