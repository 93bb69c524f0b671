package io.github.lakegate;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.Charset;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.api.java.UDF1;

/**
 * The texts of the records of one file: its lines, or its consecutive JSON values; of an outer array, its elements.
 * Spark itself reads the first value of a file with `multiLine`, and silently skips the others. Text that is not JSON is one record
 * up to the file's end; a file that is not in its encoding is one record.
 */
public final class JsonTexts implements UDF1<byte[], String[]> {
  private static final long serialVersionUID = 1L;
  private final String encoding;
  private final String line;

  /** @param line regular expression of a line's end, if each line is a record; null if each JSON value is one */
  public JsonTexts(String encoding, String line) {
    this.encoding = encoding;
    this.line = line;
  }

  @Override
  public String[] call(byte[] file) {
    Charset charset = Charset.forName(encoding);
    String text;
    try {
      text = charset.newDecoder().decode(ByteBuffer.wrap(file)).toString();
    } catch (CharacterCodingException other) {
      return new String[] {"not in " + encoding + ": " + new String(file, charset)};
    }
    if (text.startsWith("\ufeff")) text = text.substring(1);
    List<String> found = new ArrayList<>();
    if (line == null) split(text, found);
    else for (String one : text.split(line)) if (!one.isBlank()) found.add(one);
    return found.toArray(new String[0]);
  }

  private static void split(String text, List<String> found) {
    int end = 0;
    try (JsonParser parser = JsonRecord.lenient().createParser(text)) {
      boolean isArray = false;
      for (JsonToken token = parser.nextToken(); token != null; token = parser.nextToken()) {
        if (!isArray && token == JsonToken.START_ARRAY) {
          isArray = true;
        } else if (isArray && token == JsonToken.END_ARRAY) {
          isArray = false;
        } else {
          int start = (int) parser.currentTokenLocation().getCharOffset();
          parser.skipChildren();
          if (token.isScalarValue()) parser.finishToken();
          end = (int) parser.currentLocation().getCharOffset();
          found.add(text.substring(start, end));
          continue;
        }
        end = (int) parser.currentLocation().getCharOffset();
      }
      if (!isArray && text.substring(end).isBlank()) return;
    } catch (IOException malformed) {
      // the rest is one text
    }
    String rest = text.substring(end).strip();
    found.add(rest.isEmpty() ? "[" : rest); // the file ends within an array
  }
}
