package io.github.headgate;

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
 * <p>And it takes from the checksum what is there: the table's size, and the files of a small table. Delta writes them there, and
 * trusts it for the definition and the transactions; the files it works out from the log in a job of Spark, for each version that
 * is read.
 */
public final class LastingSnapshot extends Snapshot {
  // Not this object's monitor: it is held by Scala while a job of Spark works out the state.
  private final Object lock = new Object();
  private int holders;
  private boolean isReplaced;

  private LastingSnapshot(Snapshot like, Option<VersionChecksum> checksum) {
    super(like.path(), like.version(), like.logSegment(), like.deltaLog(), checksum);
  }

  /**
   * Have the newest snapshot be such a one, as soon as it is there: nothing of it is cached yet.
   *
   * <p>A checksum is written after its commit. Of a snapshot that was listed in between all that come next wait for a job of Spark
   * that works out the state: so it is looked for again.
   */
  public static void install(DeltaLog log) {
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

  /** The newest snapshot, made such a one if its checksum lists the files; without, it may have cached what it has worked out. */
  public static Snapshot prefer(DeltaLog log) {
    Option<VersionChecksum> checksum = log.unsafeVolatileSnapshot().checksumOpt();
    if (!checksum.isDefined() || listsFiles(checksum)) install(log);
    return log.unsafeVolatileSnapshot();
  }

  /** A fresh snapshot: the log is listed again. */
  public static Snapshot update(DeltaLog log) {
    log.update(false, Option.empty(), Option.empty());
    return prefer(log);
  }

  /** The newest snapshot, to be released; null if its cache goes when a newer one comes. */
  public static LastingSnapshot hold(DeltaLog log) {
    return prefer(log) instanceof LastingSnapshot newest && newest.holdIfNewest() ? newest : null;
  }

  /** Delta lists those of tables of up to 50 files. */
  private static boolean listsFiles(Option<VersionChecksum> checksum) {
    if (!checksum.isDefined()) return false;
    Option<Seq<AddFile>> files = checksum.get().allFiles();
    return files.isDefined() && files.get().size() == checksum.get().numFiles();
  }

  private boolean holdIfNewest() {
    synchronized (lock) {
      if (!isReplaced) holders++;
      return !isReplaced;
    }
  }

  @Override
  public Dataset<AddFile> allFiles() {
    if (!listsFiles(checksumOpt())) return super.allFiles();
    return SparkSession.active().createDataset(checksumOpt().get().allFiles().get(), package$.MODULE$.addFileEncoder());
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
