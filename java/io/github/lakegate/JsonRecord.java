package io.github.lakegate;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.math.MathContext;
import java.time.DateTimeException;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.api.java.UDF1;

/**
 * Reasons to refuse a record of JSON that Spark would silently shorten or change: content after the first value, elements of an
 * array after the first, a duplicate field, and a value that its type would round, cut or complete. The answer is the reason;
 * names of fields that the schema lacks go to an accumulator.
 */
public final class JsonRecord implements UDF1<String, String> {
  private static final long serialVersionUID = 1L;
  private static final JsonFactory FACTORY = lenient(); // Spark reports what is not JSON
  private static final Pattern DATE = Pattern.compile("([+-]\\d{5,7}|-?\\d{4})-\\d{2}-\\d{2}");
  private static final Pattern INSTANT =
      Pattern.compile("(" + DATE.pattern() + ")[T ](\\d{2}:\\d{2}:\\d{2})([.]\\d{1,6}0*)?( ?[A-Za-z+-].*)?");
  private static final Pattern FLOAT = Pattern.compile("\\d[.eE][\\d+-]");
  private final Kind record;
  private final FieldNames others;
  private final String zone;
  private final boolean isExact;

  /**
   * @param schema a StructType as JSON
   * @param zone the time zone of texts without a zone
   * @param patterns whether the reader has its own patterns for dates and times, which define their meaning
   * @param isExact the answer is the record with texts instead of numbers for text columns: Spark would give 1.10 as 1.1
   */
  public JsonRecord(String schema, FieldNames others, String zone, boolean patterns, boolean isExact) throws IOException {
    this.record = kindOf(new ObjectMapper().readTree(schema), patterns);
    this.others = others;
    this.zone = zone;
    this.isExact = isExact;
  }

  @Override
  public String call(String text) {
    return isExact ? exact(text) : refusal(text);
  }

  private String exact(String text) {
    if (text == null || !FLOAT.matcher(text).find()) return text;
    List<int[]> spans = new ArrayList<>();
    try (JsonParser parser = FACTORY.createParser(text)) {
      JsonToken first = parser.nextToken();
      if (first == JsonToken.START_OBJECT) refusalOf(parser, first, record, "", new HashSet<>(), spans);
    } catch (IOException malformed) {
      return text;
    }
    StringBuilder made = new StringBuilder();
    int end = 0;
    for (int[] span : spans) {
      made.append(text, end, span[0]).append('"');
      for (char one : text.substring(span[0], span[1]).toCharArray()) {
        if (one < ' ') made.append(String.format("\\u%04x", (int) one));
        else made.append(one == '"' || one == '\\' ? "\\" : "").append(one);
      }
      made.append('"');
      end = span[1];
    }
    return made.append(text, end, text.length()).toString();
  }

  private String refusal(String text) {
    if (text == null) return null;
    Set<String> lacking = new HashSet<>();
    boolean isBehind = false;
    try (JsonParser parser = FACTORY.createParser(text)) {
      JsonToken first = parser.nextToken();
      if (first == JsonToken.START_ARRAY) return "is a JSON array, and not one record";
      if (first != JsonToken.START_OBJECT) return null; // Spark finds out what it is
      String refusal = refusalOf(parser, first, record, "", lacking, null);
      if (refusal != null) return refusal;
      isBehind = true;
      if (parser.nextToken() != null) return "has more behind its first JSON value";
    } catch (IOException malformed) {
      return isBehind ? "has more behind its first JSON value" : null;
    }
    for (String name : lacking) others.add(name);
    return null;
  }

  /** A factory that accepts all that Spark may accept. */
  static JsonFactory lenient() {
    JsonFactory made = new JsonFactory();
    for (JsonParser.Feature feature : JsonParser.Feature.values()) {
      if (feature.name().startsWith("ALLOW_")) made.enable(feature);
    }
    return made;
  }

  private String refusalOf(JsonParser parser, JsonToken value, Kind kind, String at, Set<String> lacking, List<int[]> spans)
      throws IOException {
    boolean isObject = value == JsonToken.START_OBJECT;
    if (isObject && kind.fields != null) return refusalOfObject(parser, kind.fields, at, lacking, spans);
    if (kind.element != null && (isObject ? kind.isMap : value == JsonToken.START_ARRAY)) {
      JsonToken end = isObject ? JsonToken.END_OBJECT : JsonToken.END_ARRAY;
      Set<String> seen = new HashSet<>();
      for (JsonToken item = parser.nextToken(); item != end && item != null; item = parser.nextToken()) {
        if (isObject && !seen.add(parser.currentName())) return "has a field twice";
        if (isObject) item = parser.nextToken();
        String refusal = refusalOf(parser, item, kind.element, at, lacking, spans);
        if (refusal != null) return refusal;
      }
      return null;
    }
    if (value == JsonToken.START_ARRAY && kind.fields != null) { // Spark decides whether it accepts an array here
      for (JsonToken item = parser.nextToken(); item != JsonToken.END_ARRAY && item != null; item = parser.nextToken()) {
        String refusal = refusalOf(parser, item, kind, at, lacking, spans);
        if (refusal != null) return refusal;
      }
      return null;
    }
    int start = (int) parser.currentTokenLocation().getCharOffset();
    parser.skipChildren();
    if (spans != null && kind.isText && (value.isStructStart() || value == JsonToken.VALUE_NUMBER_FLOAT)) {
      boolean isNumber = value == JsonToken.VALUE_NUMBER_FLOAT;
      int end = isNumber ? start + parser.getText().length() : (int) parser.currentLocation().getCharOffset();
      spans.add(new int[] {start, end});
    }
    return kind.name != null && value.isScalarValue() && isChanged(parser, value, kind)
        ? "does not fit: " + at + " is not " + kind.name
        : null;
  }

  private String refusalOfObject(
      JsonParser parser, Map<String, Kind> known, String at, Set<String> lacking, List<int[]> spans) throws IOException {
    Set<String> seen = new HashSet<>();
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String name = parser.currentName();
      Kind kind = known.get(name);
      if (kind != null && !seen.add(name)) return "has a field twice";
      String path = at.isEmpty() ? name : at + "." + name;
      JsonToken value = parser.nextToken();
      if (kind == null) {
        lacking.add(path);
        parser.skipChildren();
        continue;
      }
      String refusal = refusalOf(parser, value, kind, path, lacking, spans);
      if (refusal != null) return refusal;
    }
    return null;
  }

  /** True if Spark's reader would change the value. Values that Spark refuses itself are not checked. */
  private boolean isChanged(JsonParser parser, JsonToken value, Kind kind) throws IOException {
    boolean isText = value == JsonToken.VALUE_STRING;
    boolean isNumber = value.isNumeric();
    String text = parser.getText();
    try {
      switch (kind.name) {
        case "tinyint": // Jackson's bytes go to 255
          return value == JsonToken.VALUE_NUMBER_INT && new BigDecimal(text).compareTo(BigDecimal.valueOf(127)) > 0;
        case "float":
          return isNumber && !gives(text, new BigDecimal(Float.parseFloat(text)), Float.toString(Float.parseFloat(text)));
        case "double":
          return isNumber && !gives(text, new BigDecimal(Double.parseDouble(text)), Double.toString(Double.parseDouble(text)));
        case "date":
          return isNumber || (isText && !DATE.matcher(text).matches());
        case "timestamp":
        case "timestamp_ntz":
          return isNumber || (isText && !isInstant(text, kind.name.equals("timestamp")));
        default:
          return (isNumber || isText) && !holds(kind, new BigDecimal(text));
      }
    } catch (NumberFormatException notOne) { // NaN, or a text that Spark refuses; a number out of range is Infinity
      return isNumber && !text.matches("[+-]?(NaN|INF|Inf.*)");
    }
  }

  private static boolean gives(String text, BigDecimal exact, String shortest) {
    BigDecimal said = new BigDecimal(text);
    return said.compareTo(new BigDecimal(shortest)) == 0
        || said.compareTo(exact.round(new MathContext(Math.max(1, said.precision())))) == 0;
  }

  private static boolean holds(Kind kind, BigDecimal said) {
    BigDecimal plain = said.signum() == 0 ? BigDecimal.ZERO : said.stripTrailingZeros();
    return plain.scale() <= kind.scale && (long) plain.precision() - plain.scale() <= kind.precision - kind.scale;
  }

  private boolean isInstant(String text, boolean hasZone) {
    Matcher found = INSTANT.matcher(text);
    if (!found.matches()) return false;
    if (found.group(5) != null || !hasZone) return true; // Spark refuses a zone for a type without one
    try { // an hour that summer time skips does not exist
      LocalDateTime at = LocalDateTime.parse(found.group(1) + "T" + found.group(3));
      return !ZoneId.of(zone).getRules().getValidOffsets(at).isEmpty();
    } catch (DateTimeException other) {
      return true; // an invalid day, which Spark refuses, or a named zone
    }
  }

  private static Kind kindOf(JsonNode type, boolean patterns) {
    Kind kind = new Kind();
    if (type.has("fields")) {
      kind.fields = new HashMap<>();
      for (JsonNode field : type.get("fields")) {
        kind.fields.put(field.get("name").asText(), kindOf(field.get("type"), patterns));
      }
    } else if (type.has("elementType")) {
      kind.element = kindOf(type.get("elementType"), patterns);
    } else if (type.has("valueType")) {
      kind.element = kindOf(type.get("valueType"), patterns);
      kind.isMap = true;
    } else {
      String name = type.asText();
      kind.isText = name.equals("string") || name.matches("(var)?char\\(\\d+\\)");
      Matcher decimal = Pattern.compile("decimal\\((\\d+),\\s*(-?\\d+)\\)").matcher(name);
      if (decimal.matches()) {
        kind.name = name;
        kind.precision = Integer.parseInt(decimal.group(1));
        kind.scale = Integer.parseInt(decimal.group(2));
      } else if (name.equals("byte")) {
        kind.name = "tinyint";
      } else if (name.equals("float") || name.equals("double") || (!patterns && name.matches("date|timestamp(_ntz)?"))) {
        kind.name = name;
      }
    }
    return kind;
  }

  /** A type: `name` of a value that is checked, or the types inside it; neither if any content is valid. */
  private static final class Kind implements Serializable {
    private static final long serialVersionUID = 1L;
    private HashMap<String, Kind> fields;
    private Kind element;
    private boolean isMap;
    private boolean isText;
    private String name;
    private int precision;
    private int scale;
  }
}
