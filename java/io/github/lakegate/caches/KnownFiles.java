package io.github.lakegate.caches;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Collections;
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
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * The files of small tables: the files of a version are those of an earlier one, changed by the commits between.
 *
 * <p>Delta computes them in this way for the checksums of tables of up to 50 files, by the same replay; for a statement it computes
 * the state of each version from the log, in a Spark job. A list is not used if its number and total size of files differ from the
 * version's checksum. These do not show vectors: so the commit of the earlier version must be unchanged, by the time of its file's
 * modification.
 */
final class KnownFiles {
  /** Up to this many files are found faster in a list than in the state, which is spread over tasks; a list takes some kilobytes a file. */
  static final int FILES_MAX = 1000;

  /** The distance from a checkpoint up to which Delta's own replay goes, too. */
  private static final int COMMITS_MAX = 10;

  /** A statement may begin on a version while others go on from there. */
  private static final int VERSIONS_MAX = 4;

  private record Known(String table, long modifiedAtMs, List<AddFile> files) {}

  private static final Map<DeltaLog, ConcurrentNavigableMap<Long, Known>> KNOWN = Collections.synchronizedMap(new WeakHashMap<>());

  private KnownFiles() {}

  /**
   * The files of a snapshot that has a checksum; null if they are too many, or not certainly known.
   *
   * @param inState computes them from the log
   */
  static Seq<AddFile> of(Snapshot snapshot, Supplier<List<AddFile>> inState) {
    VersionChecksum checksum = snapshot.checksumOpt().get();
    List<AddFile> files = checksum.allFiles().isDefined() ? listed(checksum.allFiles().get()) : null;
    if (!isWhole(files, checksum)) {
      if (!areFollowed(snapshot, checksum)) return null;
      files = followed(snapshot);
      if (!isWhole(files, checksum)) files = inState.get();
      if (!isWhole(files, checksum)) return null;
    }
    String table = snapshot.metadata().id();
    ConcurrentNavigableMap<Long, Known> versions = versions(snapshot.deltaLog());
    versions.values().removeIf(known -> !known.table.equals(table));
    versions.put(snapshot.version(), new Known(table, snapshot.logSegment().lastCommitFileModificationTimestamp(), files));
    while (versions.size() > VERSIONS_MAX) versions.pollFirstEntry();
    return PythonUtils.toSeq(files);
  }

  private static boolean isWhole(List<AddFile> files, VersionChecksum checksum) {
    if (files == null || files.size() != checksum.numFiles()) return false;
    return files.stream().mapToLong(AddFile::size).sum() == checksum.tableSizeBytes();
  }

  /** If Delta lists no files in checksums, for example with very many statistics, its reasons hold here, too. */
  private static boolean areFollowed(Snapshot snapshot, VersionChecksum checksum) {
    return checksum.numFiles() <= FILES_MAX
        && Snapshot$.MODULE$.allFilesInCrcWritePathEnabled(SparkSession.active(), snapshot)
        && !snapshot.protocol().json().contains("\"adaptiveMetadata"); // a file's metadata there may change without a commit
  }

  /** The files of the last known version, changed by the commits since; null if that version has another history, or is too far back. */
  private static List<AddFile> followed(Snapshot snapshot) {
    DeltaLog log = snapshot.deltaLog();
    Map.Entry<Long, Known> last = versions(log).floorEntry(snapshot.version());
    if (last == null || snapshot.version() - last.getKey() > COMMITS_MAX) return null;
    Known known = last.getValue();
    if (!known.table.equals(snapshot.metadata().id())) return null;
    Configuration conf = log.newDeltaHadoopConf();
    Function1<String, String> canonical = log.getCanonicalPathFunction(false);
    InMemoryLogReplay replay = new InMemoryLogReplay(Option.empty(), Option.empty());
    replay.append(last.getKey(), PythonUtils.toSeq(new ArrayList<Action>(known.files)).iterator());
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
        replay.append(version, PythonUtils.toSeq(actions).iterator());
      }
    } catch (FileNotFoundException cleanedUp) {
      return null;
    } catch (IOException unreadable) {
      throw new UncheckedIOException(unreadable);
    }
    return listed(replay.allFiles());
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
    return KNOWN.computeIfAbsent(log, each -> new ConcurrentSkipListMap<>());
  }

  private static <T> List<T> listed(Seq<T> values) {
    List<T> list = new ArrayList<>();
    for (Iterator<T> each = values.iterator(); each.hasNext(); ) list.add(each.next());
    return list;
  }
}
