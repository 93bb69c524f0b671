package io.github.lakegate.caches;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.delta.storage.LogStore;
import scala.collection.Iterator;

/**
 * Texts of commits that this JVM has read or written, so that storage is not asked for them again.
 *
 * <p>A commit never changes. A table that was created again has other files of the same names: the time of modification and the size
 * distinguish them. For a commit of this JVM only the size is known, until it is listed after an earlier commit that is unchanged:
 * then the table is the same, and no other writer can have made that version.
 */
public final class CommitTexts {
  /** Bytes of a commit that is kept. */
  public static final long SHORT_MAX = 1 << 16;

  private static final int NUMBER_MAX = 200;
  private static final long PUT_HERE = -1;

  private record Text(long modifiedAtMs, long bytes, String lines) {}

  private static final Map<String, Text> TEXTS = Collections.synchronizedMap(new LinkedHashMap<>(16, 0.75f, true) {
    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Text> eldest) {
      return size() > NUMBER_MAX;
    }
  });

  private CommitTexts() {}

  /**
   * The lines of a commit, each with its line end.
   *
   * @param file as just listed
   * @param isOfKnownTable an earlier commit of the same listing is unchanged
   */
  public static String of(FileStatus file, boolean isOfKnownTable, LogStore store, Configuration conf) throws IOException {
    String name = file.getPath().toString();
    Text known = Caches.isOn() ? TEXTS.get(name) : null;
    if (known != null && known.bytes == file.getLen()) {
      if (known.modifiedAtMs == file.getModificationTime()) return known.lines;
      if (known.modifiedAtMs == PUT_HERE && isOfKnownTable) return keep(file, known.lines);
    }
    StringBuilder text = new StringBuilder();
    for (Iterator<String> lines = store.read(file.getPath(), conf).iterator(); lines.hasNext(); ) {
      text.append(lines.next()).append('\n');
    }
    return keep(file, text.toString());
  }

  private static String keep(FileStatus file, String lines) {
    if (file.getLen() <= SHORT_MAX) {
      TEXTS.put(file.getPath().toString(), new Text(file.getModificationTime(), file.getLen(), lines));
    }
    return lines;
  }

  /** Remembers a commit that was put. */
  public static void put(Path path, List<String> lines) {
    String text = String.join("\n", lines) + "\n";
    long bytes = text.getBytes(StandardCharsets.UTF_8).length;
    if (bytes <= SHORT_MAX) TEXTS.put(path.toString(), new Text(PUT_HERE, bytes, text));
  }

  /** N of _delta_log/N.json, else -1. */
  public static long versionOf(Path path) {
    String name = path.getName();
    boolean isCommit = name.matches("\\d{20}\\.json") && path.getParent().getName().equals("_delta_log");
    return isCommit ? Long.parseLong(name.substring(0, 20)) : -1;
  }
}
