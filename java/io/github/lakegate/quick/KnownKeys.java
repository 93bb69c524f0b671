package io.github.lakegate.quick;

import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The keys of files: for each row the value of a column, sorted, so that the rows of a key are found without the file. Files never
 * change.
 *
 * <p>A column of a file is remembered when it is looked for the second time; of a small file the first time, because every statement
 * that changes rows adds such a file.
 */
final class KnownKeys {
  /** Reads a column of a file. */
  interface Reader {
    Column read() throws Exception;
  }

  /**
   * The values of a column.
   *
   * @param values sorted; of texts their hashes
   * @param rows the number of the row of each value
   */
  record Column(long[] values, int[] rows) {
    private static final int BYTES = Long.BYTES + Integer.BYTES;

    /** Sorts the values of rows. */
    static Column of(long[] values, int[] rows) {
      long[] sorted = values.clone();
      Arrays.sort(sorted);
      int[] next = new int[values.length]; // by the place of the first equal value: how many of them are placed
      int[] placed = new int[values.length];
      for (int i = 0; i < values.length; i++) {
        int first = first(sorted, values[i]);
        placed[first + next[first]++] = rows[i];
      }
      return new Column(sorted, placed);
    }

    /** The rows that have one of these values; of texts, of these or others with the same hash. */
    RoaringBitmapArray rowsOf(List<Object> wanted) {
      RoaringBitmapArray found = new RoaringBitmapArray();
      for (Object each : wanted) {
        long value = number(each);
        for (int i = first(values, value); i < values.length && values[i] == value; i++) found.add(rows[i]);
      }
      return found;
    }

    private static int first(long[] sorted, long value) {
      int low = 0;
      int high = sorted.length;
      while (low < high) {
        int middle = (low + high) >>> 1;
        if (sorted[middle] < value) low = middle + 1;
        else high = middle;
      }
      return low;
    }
  }

  private record Key(String folder, String path, long size, long modifiedAtMs, String column) {}

  private static final class Entry {
    Column column; // null: it was looked for once, or there was no room for it
    boolean isRefused;
    long usedAtNanos;

    long bytes() {
      return OBJECT_BYTES + (column == null ? 0 : (long) Column.BYTES * column.values.length);
    }
  }

  private static final int OBJECT_BYTES = 300;
  private static final long SMALL_BYTES = 1 << 20;

  /** Columns that are in use are not forgotten for others: these would be read again and again, in turn. */
  private static final long UNUSED_NANOS = TimeUnit.MINUTES.toNanos(5);

  private static final Map<Key, Entry> KNOWN = new LinkedHashMap<>(16, 0.75f, true); // in the order of their last use
  private static long bytes;
  private static volatile long bytesMax;

  private KnownKeys() {}

  /** Sets the memory of all columns. */
  static void limit(long bytes) {
    bytesMax = bytes;
  }

  /** The values of a column of a file; null if they are not known. */
  static Column of(String folder, AddFile file, String column, Reader reader) throws Exception {
    Key key = key(folder, file, column);
    Entry entry;
    synchronized (KNOWN) {
      entry = KNOWN.get(key);
      if (entry == null) {
        entry = new Entry();
        if (!keep(key, entry) || file.size() > SMALL_BYTES) return null;
      }
      entry.usedAtNanos = System.nanoTime();
      if (entry.column != null || entry.isRefused) return entry.column;
    }
    Column read = reader.read();
    synchronized (KNOWN) {
      Entry full = new Entry();
      full.column = read;
      if (entry.column == null && !keep(key, full)) entry.isRefused = true;
    }
    return read;
  }

  /** True if the values of a column are known. */
  static boolean has(String folder, AddFile file, String column) {
    synchronized (KNOWN) {
      Entry entry = KNOWN.get(key(folder, file, column));
      return entry != null && entry.column != null;
    }
  }

  private static Key key(String folder, AddFile file, String column) {
    return new Key(folder, file.path(), file.size(), file.modificationTime(), column);
  }

  private static boolean keep(Key key, Entry entry) {
    entry.usedAtNanos = System.nanoTime();
    Iterator<Entry> oldest = KNOWN.values().iterator();
    while (bytes + entry.bytes() > bytesMax && oldest.hasNext()) {
      Entry old = oldest.next();
      if (entry.usedAtNanos - old.usedAtNanos < UNUSED_NANOS) return false;
      bytes -= old.bytes();
      oldest.remove();
    }
    if (bytes + entry.bytes() > bytesMax) return false;
    Entry before = KNOWN.put(key, entry);
    bytes += entry.bytes() - (before == null ? 0 : before.bytes());
    return true;
  }

  /** A value as a number: texts by their hash. */
  static long number(Object value) {
    if (!(value instanceof UTF8String text)) return ((Number) value).longValue();
    return XXH64.hashUTF8String(text, 42);
  }
}
