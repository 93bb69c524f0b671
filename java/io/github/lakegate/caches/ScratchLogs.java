package io.github.lakegate.caches;

import io.delta.storage.CloseableIterator;
import io.github.lakegate.Bulk;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** Logs that exist for one statement, with one commit and its checksum: answered from memory, as Delta lists a log several times. */
public final class ScratchLogs {
  private record Held(FileStatus file, String text) {}

  private static final Map<Path, SortedMap<String, Held>> LOGS = new ConcurrentHashMap<>();

  private ScratchLogs() {}

  /** Makes a log. */
  public static void make(Path log, String commit, String checksum, Configuration conf) throws IOException {
    String version = String.format(Locale.ROOT, "%020d", 0);
    SortedMap<String, Held> files = new TreeMap<>();
    hold(files, new Path(log, version + ".json"), commit);
    hold(files, new Path(log, version + ".crc"), checksum);
    // Spark reads commits without the log store.
    Bulk.write(new Path(log, version + ".json"), conf, commit.getBytes(StandardCharsets.UTF_8));
    if (Caches.isOn()) LOGS.put(log, files);
    else Bulk.write(new Path(log, version + ".crc"), conf, checksum.getBytes(StandardCharsets.UTF_8));
  }

  /** Removes a log, whether it exists or not. */
  public static void drop(Path log, Configuration conf) throws IOException {
    LOGS.remove(log);
    log.getFileSystem(conf).delete(log, true);
  }

  private static void hold(SortedMap<String, Held> files, Path path, String text) {
    long bytes = text.getBytes(StandardCharsets.UTF_8).length;
    files.put(path.getName(), new Held(new FileStatus(bytes, false, 1, bytes, System.currentTimeMillis(), path), text));
  }

  /** The files of a log from one on; null if it is none of these. */
  public static Iterator<FileStatus> listFrom(Path first) {
    SortedMap<String, Held> files = LOGS.get(first.getParent());
    return files == null ? null : files.tailMap(first.getName()).values().stream().map(Held::file).iterator();
  }

  /** The lines of a file; null if it is of none of these logs. */
  public static CloseableIterator<String> read(Path file) throws IOException {
    SortedMap<String, Held> files = LOGS.get(file.getParent());
    if (files == null) return null;
    Held found = files.get(file.getName());
    if (found == null) throw new FileNotFoundException(file.toString());
    Iterator<String> lines = found.text.lines().iterator();
    return new CloseableIterator<>() {
      @Override
      public boolean hasNext() {
        return lines.hasNext();
      }

      @Override
      public String next() {
        return lines.next();
      }

      @Override
      public void close() {}
    };
  }
}
