package io.github.lakegate.caches;

import java.util.concurrent.locks.ReentrantLock;
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
 * A snapshot whose cached state outlives its time as the newest one, for statements that still run on it.
 *
 * <p>Delta drops the cache as soon as a newer snapshot is there. Whoever still asks the old one for files has its state
 * worked out again from the log, each time; beside a commit a second that is most statements.
 *
 * <p>And it takes the table's size from the checksum, which Delta trusts for the definition and the transactions; and files of a
 * small table from what is known of them ({@link KnownFiles}). Both Delta works out from the log in jobs of Spark, for each version
 * that is read.
 */
public final class LastingSnapshot extends Snapshot {
  // Not this object's monitor: it is held by Scala while a job of Spark works out the state.
  private final Object lock = new Object();
  private int holders;
  private boolean isReplaced;
  private boolean isAskedForFiles;
  private Seq<AddFile> files;

  private LastingSnapshot(Snapshot like, Option<VersionChecksum> checksum) {
    super(like.path(), like.version(), like.logSegment(), like.deltaLog(), checksum);
  }

  /**
   * Have the newest snapshot be such a one, as soon as it is there: nothing of it is cached yet.
   *
   * <p>A checksum is written after its commit. Of a snapshot that was listed in between all that come next wait for a job of Spark
   * that works out the state: so it is looked for again.
   */
  static void install(DeltaLog log) {
    ReentrantLock installing = log.snapshotLock();
    installing.lock();
    try {
      Snapshot newest = log.unsafeVolatileSnapshot();
      if (newest instanceof LastingSnapshot || newest.version() < 0 || newest._computedStateTriggered()) return;
      Option<VersionChecksum> checksum = newest.checksumOpt();
      if (!checksum.isDefined()) checksum = log.readChecksum(newest.version(), Option.empty());
      // Without a checksum Delta works out the state at once, to write one.
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
        || (checksum.get().numFiles() <= KnownFiles.FILES_MAX && !newest.stateReconstructionTriggered())) install(log);
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

  // In the monitor in which Scala works out whatever else is asked of a snapshot once.
  private synchronized Seq<AddFile> files() {
    if (isAskedForFiles) return files;
    checkpointProvider(); // Delta asks the newest snapshot for it in its lock, and the monitor is held for as long as files are read
    files = KnownFiles.of(this, () -> super.allFiles().collectAsList());
    isAskedForFiles = true;
    return files;
  }

  @Override
  public long sizeInBytes() {
    return checksumOpt().get().tableSizeBytes();
  }

  @Override
  public long numOfFiles() {
    return checksumOpt().get().numFiles();
  }

  /** Once for each time that it was held. */
  public void release() {
    synchronized (lock) {
      holders--;
      if (holders > 0 || !isReplaced) return;
    }
    super.uncache();
  }

  /** By Delta, when a newer snapshot is there or the table is forgotten. */
  @Override
  public void uncache() {
    synchronized (lock) {
      isReplaced = true;
      if (holders > 0) return;
    }
    super.uncache();
  }
}
