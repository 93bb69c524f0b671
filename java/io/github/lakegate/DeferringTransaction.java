package io.github.lakegate;

import io.github.lakegate.caches.Caches;
import io.github.lakegate.caches.OpenCommits;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.CurrentTransactionInfo;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import scala.Option;
import scala.collection.Iterator;

/**
 * A transaction with a given id, whose checksum and checkpoint can be written later, by another thread.
 *
 * <p>If a checkpoint is due, Delta computes the table's whole state in a Spark job for its log entry about the commit, before the
 * commit returns. With ten commits in half a second, checkpoints would keep a core busy; so some of them are left out.
 */
public final class DeferringTransaction extends OptimisticTransaction {
  /** After a checkpoint a table has none for this multiple of the time that it took, but for `SKIPPED_MAX` that are due at most. */
  private static final int REST = 4;

  private static final int SKIPPED_MAX = 9;
  private static final long QUEUED_NANOS = TimeUnit.MINUTES.toNanos(1);

  /** A table's time without checkpoints. */
  private record Resting(long untilNanos, int skipped) {}

  private static final Map<DeltaLog, Resting> RESTING = Collections.synchronizedMap(new WeakHashMap<>());
  private static final Map<String, DeferringTransaction> OPEN = new ConcurrentHashMap<>(); // by id, until `finish`
  private static final Map<String, DeferringTransaction> DUE = new ConcurrentHashMap<>(); // by id, until `checkpoint`
  private final SparkSession session;
  private final String id;
  private final boolean hasCaches = Caches.isOn();
  private final boolean isDeferring;
  private final List<PostCommitHook> left = new ArrayList<>();
  private long dueAt = -1;

  /** @param hasLater the caller will call `finish` for Delta's work after a commit */
  public DeferringTransaction(
      SparkSession session, String id, DeltaLog log, Option<CatalogTable> table, Snapshot snapshot, boolean hasLater) {
    super(log, table, snapshot);
    this.session = session;
    this.id = id;
    isDeferring = hasLater && hasCaches;
    if (!isDeferring) return;
    for (Iterator<PostCommitHook> hooks = postCommitHooks().iterator(); hooks.hasNext(); ) left.add(hooks.next());
    postCommitHooks().clear();
  }

  /** Commits; other threads that list the log do not see the commit before Delta has its checksum. Returns its version. */
  public long commitHidden(List<Action> actions, DeltaOperations.Operation operation, Map<String, String> tags) {
    OpenCommits.begin();
    OPEN.put(id, this);
    try {
      long version = commit(PythonUtils.toSeq(actions), operation, PythonUtils.toScalaMap(tags));
      Caches.install(deltaLog());
      return version;
    } finally {
      OpenCommits.end();
      if (!isDeferring || !getCommitted().isDefined()) OPEN.remove(id);
      while (hasCaches && deltaLog().snapshotLock().isHeldByCurrentThread()) deltaLog().snapshotLock().unlock();
    }
  }

  /** True if a commit of this JVM is under way that may be in the log, and whose checksum is not there yet. */
  public static boolean isOpen(DeltaLog log) {
    return OPEN.values().stream().anyMatch(each -> each.deltaLog() == log);
  }

  /**
   * Does the work left after a commit, except the checkpoint: all of it may be left out, and a later commit does it instead.
   * Returns true if a checkpoint is due.
   */
  public static boolean finish(String id) {
    DeferringTransaction done = OPEN.get(id);
    if (done == null) return false; // nothing was committed, or Delta's work after the commit has failed
    try {
      return Attempt.in(done.session, () -> {
        for (PostCommitHook hook : done.left) hook.run(done.session, done.getCommitted().get());
        if (done.dueAt >= 0) DUE.put(id, done);
        return done.dueAt >= 0;
      });
    } finally {
      OPEN.remove(id);
    }
  }

  /** Writes the checkpoint that is due. */
  public static void checkpoint(String id) {
    DeferringTransaction done = DUE.remove(id);
    DeltaLog log = done.deltaLog();
    long beganNanos = System.nanoTime();
    Attempt.in(done.session, () -> {
      log.checkpoint(log.getSnapshotAt(done.dueAt, Option.empty(), Option.empty(), false), Option.empty());
      return null;
    });
    long nowNanos = System.nanoTime();
    RESTING.put(log, new Resting(nowNanos + REST * (nowNanos - beganNanos), 0));
  }

  @Override
  public String txnId() {
    return id;
  }

  /** After the commit. The next thread that lists the log, in Delta's lock, finds that Delta has the version and its checksum already. */
  @Override
  public Option<VersionChecksum> incrementallyDeriveChecksum(long version, CurrentTransactionInfo committed) {
    Option<VersionChecksum> checksum = super.incrementallyDeriveChecksum(version, committed);
    if (!hasCaches) return checksum;
    deltaLog().snapshotLock().lock();
    OpenCommits.end();
    return checksum;
  }

  @Override
  public boolean isCheckpointNeeded(long version, Snapshot after) {
    boolean isDue = super.isCheckpointNeeded(version, after);
    if (!isDue || !isDeferring) return isDue;
    Resting resting = RESTING.get(deltaLog());
    boolean isSkipped = resting != null && resting.skipped < SKIPPED_MAX && System.nanoTime() - resting.untilNanos < 0;
    if (!isSkipped) dueAt = version;
    RESTING.put(
        deltaLog(), isSkipped ? new Resting(resting.untilNanos, resting.skipped + 1) : new Resting(System.nanoTime() + QUEUED_NANOS, 0));
    return false;
  }
}
