package io.github.headgate;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.function.Supplier;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.FileAction;
import org.apache.spark.sql.delta.actions.InMemoryLogReplay;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * The files of small tables: those of a version are those of an earlier one, and what the commits between did to them.
 *
 * <p>Delta works them out in this way for the checksums of tables of up to 50 files, by the same replay; for a statement it works
 * out the state of each version from the log, in a job of Spark. A list that does not come to the number and the size of files that
 * the version's checksum says is not taken.
 */
final class KnownFiles {
  /** So many are found faster in a list than in the state, which is spread over tasks; a list takes some kilobytes a file. */
  static final int FILES_MAX = 1000;

  /** As far from a checkpoint Delta's own look into the log is, too. */
  private static final int COMMITS_MAX = 10;

  private static final int VERSIONS_MAX = 16;

  private record Known(String table, Seq<AddFile> files) {}

  private static final Map<DeltaLog, ConcurrentNavigableMap<Long, Known>> KNOWN = Collections.synchronizedMap(new WeakHashMap<>());

  private KnownFiles() {}

  /**
   * The files of a snapshot that has a checksum; null if they are too many, or not known for certain.
   *
   * @param inState works them out from the log
   */
  static Seq<AddFile> of(Snapshot snapshot, Supplier<List<AddFile>> inState) {
    VersionChecksum checksum = snapshot.checksumOpt().get();
    Seq<AddFile> files = checksum.allFiles().isDefined() ? checksum.allFiles().get() : null;
    if (!isWhole(files, checksum) && checksum.numFiles() > FILES_MAX) return null;
    if (!isWhole(files, checksum)) files = followed(snapshot);
    if (!isWhole(files, checksum)) files = PythonUtils.toSeq(inState.get());
    if (!isWhole(files, checksum)) return null;
    ConcurrentNavigableMap<Long, Known> versions = versions(snapshot.deltaLog());
    versions.put(snapshot.version(), new Known(snapshot.metadata().id(), files));
    while (versions.size() > VERSIONS_MAX) versions.pollFirstEntry();
    return files;
  }

  private static boolean isWhole(Seq<AddFile> files, VersionChecksum checksum) {
    if (files == null) return false;
    long bytes = 0;
    for (Iterator<AddFile> each = files.iterator(); each.hasNext(); ) bytes += each.next().size();
    return files.size() == checksum.numFiles() && bytes == checksum.tableSizeBytes();
  }

  /** Those of the last version that is known, and what was committed since; null if that is another table's, or too far. */
  private static Seq<AddFile> followed(Snapshot snapshot) {
    DeltaLog log = snapshot.deltaLog();
    Map.Entry<Long, Known> last = versions(log).floorEntry(snapshot.version());
    if (last == null || snapshot.version() - last.getKey() > COMMITS_MAX) return null;
    if (!last.getValue().table.equals(snapshot.metadata().id())) return null;
    InMemoryLogReplay replay = new InMemoryLogReplay(Option.empty(), Option.empty());
    replay.append(last.getKey(), PythonUtils.toSeq(new ArrayList<Action>(listed(last.getValue().files))).iterator());
    try {
      for (long version = last.getKey() + 1; version <= snapshot.version(); version++) {
        Path commit = new Path(log.logPath(), String.format(Locale.ROOT, "%020d.json", version));
        List<Action> actions = new ArrayList<>();
        for (String line : listed(log.store().read(commit, log.newDeltaHadoopConf()))) {
          Action action = Action.fromJson(line);
          // In the state it has its scheme.
          if (action instanceof FileAction file && file.path().startsWith("/")) return null;
          actions.add(action);
        }
        replay.append(version, PythonUtils.toSeq(actions).iterator());
      }
    } catch (Exception unreadable) {
      return null; // Delta's own look at the log says what is wrong with it
    }
    return replay.allFiles();
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
