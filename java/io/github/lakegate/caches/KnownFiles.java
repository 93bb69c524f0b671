package io.github.lakegate.caches;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.Snapshot$;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.actions.InMemoryLogReplay;
import org.apache.spark.sql.delta.actions.RemoveFile;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * The files of tables: the files of a version are those of an earlier one, changed by the commits between.
 *
 * <p>Delta computes them in this way for the checksums of tables of up to 50 files; for a statement it computes the state of each
 * version from the log, in a Spark job. A list is not used if its number and total size of files differ from the version's checksum.
 * These do not show vectors: so the commit of the earlier version must be unchanged, by the time of its file's modification.
 */
final class KnownFiles {
  /** Up to this many files are found faster in a list than in the state, which is spread over tasks. */
  static final int STOCK_MAX = 1000;

  /** More commits are not read one by one. */
  private static final int COMMITS_MAX = 50;

  /** A statement may begin on a version while others go on from there. */
  private static final int VERSIONS_MAX = 4;

  /**
   * The files of a version.
   *
   * @param files by path and vector
   * @param heapBytes an estimate of their memory
   */
  record Known(String table, long modifiedAtMs, Map<String, KnownFile> files, long size, long heapBytes) {
    private boolean isOf(VersionChecksum checksum) {
      return files.size() == checksum.numFiles() && size == checksum.tableSizeBytes();
    }
  }

  private static final Map<DeltaLog, ConcurrentNavigableMap<Long, Known>> KNOWN = new WeakHashMap<>();

  private static final Map<DeltaLog, Long> USED = new WeakHashMap<>(); // the number of the last use
  private static long uses;

  private KnownFiles() {}

  /**
   * The files of a snapshot that has a checksum; null if they are too many, or not certainly known.
   *
   * @param inState computes them from the log
   * @param bytesMax the memory of the lists of all tables
   */
  static Known of(Snapshot snapshot, Supplier<List<AddFile>> inState, int filesMax, long bytesMax) {
    VersionChecksum checksum = snapshot.checksumOpt().get();
    if (checksum.numFiles() > filesMax) return null;
    String table = snapshot.metadata().id();
    long modifiedAtMs = snapshot.logSegment().lastCommitFileModificationTimestamp();
    ConcurrentNavigableMap<Long, Known> versions = versions(snapshot.deltaLog());
    Known known = versions.get(snapshot.version());
    if (known != null && known.table.equals(table) && known.modifiedAtMs == modifiedAtMs) return known;
    known = checksum.allFiles().isDefined() ? made(table, modifiedAtMs, listed(checksum.allFiles().get())) : null;
    if (known == null || !known.isOf(checksum)) {
      if (!areFollowed(snapshot)) return null;
      known = followed(snapshot, table, modifiedAtMs, versions);
      if (known == null || !known.isOf(checksum)) known = made(table, modifiedAtMs, inState.get());
      if (!known.isOf(checksum)) return null;
    }
    versions.values().removeIf(each -> !each.table.equals(table));
    if (known.heapBytes > bytesMax) {
      versions.clear();
      return null;
    }
    versions.put(snapshot.version(), known);
    while (versions.size() > VERSIONS_MAX) versions.pollFirstEntry();
    makeRoom(bytesMax);
    return known;
  }

  /** Forgets the tables that were used least recently. */
  private static void makeRoom(long bytesMax) {
    synchronized (KNOWN) {
      while (true) {
        long bytes = 0;
        DeltaLog oldest = null;
        for (Map.Entry<DeltaLog, ConcurrentNavigableMap<Long, Known>> each : KNOWN.entrySet()) {
          Map.Entry<Long, Known> newest = each.getValue().lastEntry();
          if (newest == null) continue;
          bytes += newest.getValue().heapBytes;
          if (oldest == null || USED.get(each.getKey()) < USED.get(oldest)) oldest = each.getKey();
        }
        if (bytes <= bytesMax) return;
        KNOWN.remove(oldest);
      }
    }
  }

  /** If Delta lists no files in checksums, for example with very many statistics, its reasons hold here, too. */
  private static boolean areFollowed(Snapshot snapshot) {
    return Snapshot$.MODULE$.allFilesInCrcWritePathEnabled(SparkSession.active(), snapshot)
        && !snapshot.protocol().json().contains("\"adaptiveMetadata"); // a file's metadata there may change without a commit
  }

  private static Known made(String table, long modifiedAtMs, List<AddFile> files) {
    Map<String, KnownFile> made = new LinkedHashMap<>(files.size() * 2);
    long size = 0;
    long heapBytes = 0;
    for (AddFile file : files) {
      KnownFile one = new KnownFile(file);
      made.put(key(file.path(), file.getDeletionVectorUniqueId()), one);
      size += file.size();
      heapBytes += one.heapBytes();
    }
    return new Known(table, modifiedAtMs, made, size, heapBytes);
  }

  /** The files of the last known version, changed by the commits since; null if that version has another history, or is too far back. */
  private static Known followed(Snapshot snapshot, String table, long modifiedAtMs, ConcurrentNavigableMap<Long, Known> versions) {
    DeltaLog log = snapshot.deltaLog();
    Map.Entry<Long, Known> last = versions.floorEntry(snapshot.version());
    if (last == null || snapshot.version() - last.getKey() > COMMITS_MAX) return null;
    Known known = last.getValue();
    if (!known.table.equals(table)) return null;
    Configuration conf = log.newDeltaHadoopConf();
    Function1<String, String> canonical = log.getCanonicalPathFunction(false);
    InMemoryLogReplay since = new InMemoryLogReplay(Option.empty(), Option.empty());
    try {
      if (modifiedAtMs(snapshot, commit(log, last.getKey()), conf) != known.modifiedAtMs) return null;
      for (long version = last.getKey() + 1; version <= snapshot.version(); version++) {
        List<Action> actions = new ArrayList<>();
        for (String line : listed(log.store().read(commit(log, version), conf))) {
          Action action = Action.fromJson(line);
          // In the state all paths are canonical.
          if (action instanceof FileAction file && !canonical.apply(file.path()).equals(file.path())) return null;
          actions.add(action);
        }
        since.append(version, PythonUtils.toSeq(actions).iterator());
      }
    } catch (FileNotFoundException cleanedUp) {
      return null;
    } catch (IOException unreadable) {
      throw new UncheckedIOException(unreadable);
    }
    Map<String, KnownFile> files = new LinkedHashMap<>(known.files);
    long size = known.size;
    long heapBytes = known.heapBytes;
    for (Iterator<Action> each = since.checkpoint(); each.hasNext(); ) {
      KnownFile before = null;
      Action action = each.next();
      if (action instanceof RemoveFile removed) before = files.remove(key(removed.path(), removed.getDeletionVectorUniqueId()));
      if (action instanceof AddFile added) {
        KnownFile one = new KnownFile(added);
        before = files.put(key(added.path(), added.getDeletionVectorUniqueId()), one);
        size += added.size();
        heapBytes += one.heapBytes();
      }
      if (before == null) continue;
      size -= before.add.size();
      heapBytes -= before.heapBytes();
    }
    return new Known(table, modifiedAtMs, files, size, heapBytes);
  }

  /** Delta tells files apart by their path and their vector. */
  private static String key(String path, Option<String> vector) {
    return vector.isDefined() ? path + '\n' + vector.get() : path;
  }

  private static Path commit(DeltaLog log, long version) {
    return new Path(log.logPath(), String.format(Locale.ROOT, "%020d.json", version));
  }

  private static long modifiedAtMs(Snapshot snapshot, Path commit, Configuration conf) throws IOException {
    for (FileStatus file : listed(snapshot.logSegment().deltas())) {
      if (file.getPath().getName().equals(commit.getName())) return file.getModificationTime();
    }
    return commit.getFileSystem(conf).getFileStatus(commit).getModificationTime(); // it is older than a checkpoint
  }

  private static ConcurrentNavigableMap<Long, Known> versions(DeltaLog log) {
    synchronized (KNOWN) {
      USED.put(log, ++uses);
      return KNOWN.computeIfAbsent(log, each -> new ConcurrentSkipListMap<>());
    }
  }

  private static <T> List<T> listed(Seq<T> values) {
    List<T> list = new ArrayList<>();
    for (Iterator<T> each = values.iterator(); each.hasNext(); ) list.add(each.next());
    return list;
  }
}
