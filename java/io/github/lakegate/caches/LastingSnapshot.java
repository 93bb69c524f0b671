package io.github.lakegate.caches;

import java.util.concurrent.locks.ReentrantLock;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.implicits.package$;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * A snapshot whose cached state is kept after a newer one exists, for statements that still run on it.
 *
 * <p>Delta drops the cache as soon as a newer snapshot exists. A statement that then asks the old one for files makes Delta compute
 * its state again from the log, each time; with a commit per second this concerns most statements.
 *
 * <p>It also takes the table's size from the checksum, which Delta trusts for the definition and the transactions; and the files of
 * a small table from {@link KnownFiles}. Delta computes both from the log in Spark jobs, for each version that is
 * read.
 */
public final class LastingSnapshot extends Snapshot {
  // Not this object's monitor: Scala holds it while a Spark job computes the state.
  private final Object lock = new Object();
  private int holders;
  private boolean isReplaced;
  private boolean isAskedForFiles;
  private Seq<AddFile> files;

  private LastingSnapshot(Snapshot like, Option<VersionChecksum> checksum) {
    super(like.path(), like.version(), like.logSegment(), like.deltaLog(), checksum);
  }

  /**
   * Replaces the newest snapshot by a lasting one, early: before anything of it is cached.
   *
   * <p>A checksum is written after its commit. If a snapshot was listed in between, all later ones wait for a Spark job that
   * computes the state: so the checksum is looked for again.
   */
  static void install(DeltaLog log) {
    ReentrantLock installing = log.snapshotLock();
    installing.lock();
    try {
      Snapshot newest = log.unsafeVolatileSnapshot();
      if (newest instanceof LastingSnapshot || newest.version() < 0 || newest._computedStateTriggered()) return;
      Option<VersionChecksum> checksum = newest.checksumOpt();
      if (!checksum.isDefined()) checksum = log.readChecksum(newest.version(), Option.empty());
      // Without a checksum Delta computes the state at once, to write one.
      if (checksum.isDefined()) log.installSnapshot(new LastingSnapshot(newest, checksum), System.currentTimeMillis());
    } finally {
      installing.unlock();
    }
  }

  /** The newest snapshot, made such a one if its files are few, unless it may have cached what it has worked out. */
  static Snapshot prefer(DeltaLog log) {
    Snapshot newest = log.unsafeVolatileSnapshot();
    Option<VersionChecksum> checksum = newest.checksumOpt();
    if (!checksum.isDefined()
        || checksum.get().allFiles().isDefined()
        || (checksum.get().numFiles() <= KnownFiles.STOCK_MAX && !newest.stateReconstructionTriggered())) install(log);
    return log.unsafeVolatileSnapshot();
  }

  /** The newest snapshot, to be released; null if its cache goes when a newer one comes. */
  static LastingSnapshot hold(DeltaLog log) {
    return prefer(log) instanceof LastingSnapshot newest && newest.holdIfNewest() ? newest : null;
  }

  private boolean holdIfNewest() {
    synchronized (lock) {
      if (!isReplaced) holders++;
      return !isReplaced;
    }
  }

  @Override
  public Dataset<AddFile> allFiles() {
    Seq<AddFile> known = files();
    return known == null ? super.allFiles() : SparkSession.active().createDataset(known, package$.MODULE$.addFileEncoder());
  }

  // In the monitor in which Scala computes the lazy values of a snapshot.
  private synchronized Seq<AddFile> files() {
    if (isAskedForFiles) return files;
    checkpointProvider(); // Delta asks the newest snapshot for it in its lock, and the monitor is held while files are read
    KnownFiles.Known known = known(KnownFiles.STOCK_MAX, Long.MAX_VALUE);
    files = known == null ? null : PythonUtils.toSeq(known.files().values().stream().map(file -> file.add).toList());
    isAskedForFiles = true;
    return files;
  }

  KnownFiles.Known known(int filesMax, long bytesMax) {
    return KnownFiles.of(this, () -> super.allFiles().collectAsList(), filesMax, bytesMax);
  }

  @Override
  public long sizeInBytes() {
    return checksumOpt().get().tableSizeBytes();
  }

  @Override
  public long numOfFiles() {
    return checksumOpt().get().numFiles();
  }

  /** Call once for each hold. */
  public void release() {
    synchronized (lock) {
      holders--;
      if (holders > 0 || !isReplaced) return;
    }
    super.uncache();
  }

  /** Called by Delta when a newer snapshot exists or the table is forgotten. */
  @Override
  public void uncache() {
    synchronized (lock) {
      isReplaced = true;
      if (holders > 0) return;
    }
    super.uncache();
  }
}
