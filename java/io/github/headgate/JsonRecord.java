package io.github.headgate;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.api.java.UDF1;

/**
 * What Spark would leave out of a record of JSON in silence: what follows the first value, all of an array but its first
 * element, and a field that comes twice are a reason to refuse it, which is the answer; names of fields that the schema lacks
 * go to an accumulator.
 */
public final class JsonRecord implements UDF1<String, String> {
  private static final long serialVersionUID = 1L;
  private static final JsonFactory FACTORY = lenient(); // what is not JSON is for Spark to say
  private final HashMap<String, Object> fields; // name → fields of it, or null where whatever is in it belongs to its value
  private final FieldNames others;

  /** @param schema a StructType as JSON */
  public JsonRecord(String schema, FieldNames others) throws IOException {
    this.fields = fieldsOf(new ObjectMapper().readTree(schema));
    this.others = others;
  }

  @Override
  public String call(String text) {
    if (text == null) return null;
    Set<String> lacking = new HashSet<>();
    boolean isBehind = false;
    try (JsonParser parser = FACTORY.createParser(text)) {
      JsonToken first = parser.nextToken();
      if (first == JsonToken.START_ARRAY) return "is a JSON array, and not one record";
      if (first != JsonToken.START_OBJECT) return null; // Spark finds out what it is
      if (hasTwice(parser, fields, "", lacking)) return "has a field twice";
      isBehind = true;
      if (parser.nextToken() != null) return "has more behind its first JSON value";
    } catch (IOException malformed) {
      return isBehind ? "has more behind its first JSON value" : null;
    }
    for (String name : lacking) others.add(name);
    return null;
  }

  private static JsonFactory lenient() {
    JsonFactory made = new JsonFactory();
    for (JsonParser.Feature feature : JsonParser.Feature.values()) {
      if (feature.name().startsWith("ALLOW_")) made.enable(feature);
    }
    return made;
  }

  private static boolean hasTwice(JsonParser parser, Map<String, Object> known, String at, Set<String> lacking)
      throws IOException {
    Set<String> seen = new HashSet<>();
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String name = parser.currentName();
      boolean isKnown = known.containsKey(name);
      if (isKnown && !seen.add(name)) return true;
      JsonToken value = parser.nextToken();
      if (!isKnown) {
        lacking.add(at + name);
        parser.skipChildren();
      } else if (hasTwiceIn(parser, value, fieldsIn(known.get(name)), at + name + ".", lacking)) {
        return true;
      }
    }
    return false;
  }

  private static boolean hasTwiceIn(
      JsonParser parser, JsonToken value, Map<String, Object> known, String at, Set<String> lacking) throws IOException {
    if (known == null || (value != JsonToken.START_OBJECT && value != JsonToken.START_ARRAY)) {
      parser.skipChildren();
      return false;
    }
    if (value == JsonToken.START_OBJECT) return hasTwice(parser, known, at, lacking);
    for (JsonToken item = parser.nextToken(); item != JsonToken.END_ARRAY && item != null; item = parser.nextToken()) {
      if (hasTwiceIn(parser, item, known, at, lacking)) return true;
    }
    return false;
  }

  @SuppressWarnings("unchecked")
  private static Map<String, Object> fieldsIn(Object kind) {
    return (Map<String, Object>) kind;
  }

  private static HashMap<String, Object> fieldsOf(JsonNode type) {
    while (type != null && type.has("elementType")) type = type.get("elementType");
    if (type == null || !type.has("fields")) return null;
    HashMap<String, Object> found = new HashMap<>();
    for (JsonNode field : type.get("fields")) found.put(field.get("name").asText(), fieldsOf(field.get("type")));
    return found;
  }
}
