package io.github.headgate;

import java.util.concurrent.locks.ReentrantLock;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;

/**
 * A snapshot whose cached state outlives its time as the newest one, for statements that still run on it.
 *
 * <p>Delta drops the cache as soon as a newer snapshot is there. Whoever still asks the old one for files has its state
 * worked out again from the log, each time; beside a commit a second that is most statements.
 *
 * <p>And it takes the table's size from its checksum, where Delta sums the state up in a job of Spark, for each version that is
 * read.
 */
public final class LastingSnapshot extends Snapshot {
  // Not this object's monitor: it is held by Scala while a job of Spark works out the state.
  private final Object lock = new Object();
  private int holders;
  private boolean isReplaced;

  private LastingSnapshot(Snapshot like) {
    super(like.path(), like.version(), like.logSegment(), like.deltaLog(), like.checksumOpt());
  }

  /** Have the newest snapshot be such a one, as soon as it is there: nothing of it is cached yet. */
  public static void install(DeltaLog log) {
    ReentrantLock installing = log.snapshotLock();
    installing.lock();
    try {
      Snapshot newest = log.unsafeVolatileSnapshot();
      // Without a checksum Delta works out the state at once, to write one.
      boolean isKept = newest instanceof LastingSnapshot || newest._computedStateTriggered() || !newest.checksumOpt().isDefined();
      if (!isKept) log.installSnapshot(new LastingSnapshot(newest), System.currentTimeMillis());
    } finally {
      installing.unlock();
    }
  }

  /** The newest snapshot, to be released; null if its cache goes when a newer one comes. */
  public static LastingSnapshot hold(DeltaLog log) {
    return log.unsafeVolatileSnapshot() instanceof LastingSnapshot newest && newest.holdIfNewest() ? newest : null;
  }

  private boolean holdIfNewest() {
    synchronized (lock) {
      if (!isReplaced) holders++;
      return !isReplaced;
    }
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
