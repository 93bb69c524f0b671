package io.github.lakegate;

import io.github.lakegate.caches.Caches;
import io.github.lakegate.caches.OpenCommits;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.apache.spark.api.python.PythonUtils;
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
 * An attempt to commit actions as the version after a snapshot, by Delta's own transaction.
 *
 * <p>Runs in one call from Python: with as many statements as cores each call waits for a core, and others wait for the commit.
 */
public final class Attempt {
  /** No attempt was made: the newest snapshot could not be read, or the actions could not be parsed. */
  public static final class NotBegun extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private NotBegun(Throwable cause) {
      super(cause);
    }

    @Override
    public String toString() { // the cause is what matters to a reader
      return getCause().toString();
    }
  }

  private static final Map<String, Attempt> LEFT = new ConcurrentHashMap<>(); // by the commit's id
  private final SparkSession session;
  private final Transaction transaction;
  private final List<Action> actions = new ArrayList<>();
  private final List<PostCommitHook> left = new ArrayList<>();

  private Attempt(SparkSession session, Transaction transaction) {
    this.session = session;
    this.transaction = transaction;
  }

  /**
   * Commits; returns the version of the commit. Without an attempt if the table's newest version is not the one before `version`, or
   * the table is another one: then returns the newest version, a blank, and the table's id.
   *
   * @param session its settings are those of the commit
   * @param version of the commit
   * @param table its id, or null: any table
   * @param actions as in the log, a line each, without `commitInfo`
   * @param tags of the commit, or null
   * @param isBlind whether the actions depend on nothing in the table
   * @param id identifies the commit in the log: the caller must know it even if no answer arrives
   * @param hasLater the caller will call `finish` for Delta's work after a commit (checksum, checkpoint)
   * @param token of the committing statement, and its history: see {@link Gate#enter}; or null: the thread's current ones
   * @param job under which it commits, or null: see {@link Gate#actAs}
   */
  public static String commit(
      SparkSession session, DeltaLog log, long version, String table, String actions, Map<String, String> tags, boolean isBlind,
      String id, boolean hasLater, String token, String history, String job) {
    return in(session, () -> {
      Attempt attempt;
      try {
        Snapshot newest = Caches.newest(log);
        if (newest.version() != version - 1) newest = Caches.update(log);
        Snapshot own = Caches.isOn() && newest.version() == version - 1 ? ours(newest) : newest;
        String found = own.metadata().id();
        if (own.version() != version - 1 || (table != null && !table.equals(found))) return own.version() + " " + found;
        attempt = new Attempt(session, new Transaction(id, log, own, hasLater));
        // A second lock: if the session's settings were ever ignored, a winning commit that has files would still be seen.
        if (!isBlind) attempt.transaction.readWholeTable();
        actions.lines().forEach(line -> attempt.actions.add(Action.fromJson(line)));
      } catch (Exception failed) {
        throw new NotBegun(failed);
      }
      if (attempt.transaction.isCheckpointLater) {
        Iterator<PostCommitHook> hooks = attempt.transaction.postCommitHooks().iterator();
        while (hooks.hasNext()) attempt.left.add(hooks.next());
        attempt.transaction.postCommitHooks().clear();
      }
      return String.valueOf(Gate.within(token, history, job, () -> attempt.landed(tags == null ? Map.of() : tags)));
    });
  }

  private long landed(Map<String, String> tags) {
    OpenCommits.begin();
    try {
      DeltaOperations.Operation update = new DeltaOperations.Update(Option.empty());
      long version = transaction.commit(PythonUtils.toSeq(actions), update, PythonUtils.toScalaMap(tags));
      Caches.install(transaction.deltaLog());
      if (transaction.isCheckpointLater) LEFT.put(transaction.id, this);
      return version;
    } finally {
      OpenCommits.end();
      while (transaction.hasCaches && transaction.deltaLog().snapshotLock().isHeldByCurrentThread()) transaction.deltaLog().snapshotLock().unlock();
    }
  }

  /**
   * Does the work left after a commit, except the checkpoint: all of it may be left out, and a later commit does it instead.
   * Returns true if a checkpoint is due.
   */
  public static boolean finish(String id) {
    Attempt done = LEFT.remove(id);
    if (done == null) return false; // the commit was made, and Delta's work after it has failed
    return in(done.session, () -> {
      for (PostCommitHook hook : done.left) hook.run(done.session, done.transaction.getCommitted().get());
      if (done.transaction.dueAt >= 0) LEFT.put(id, done);
      return done.transaction.dueAt >= 0;
    });
  }

  /** Writes the checkpoint that is due. */
  public static void checkpoint(String id) {
    Attempt done = LEFT.remove(id);
    in(done.session, () -> {
      DeltaLog log = done.transaction.deltaLog();
      log.checkpoint(log.getSnapshotAt(done.transaction.dueAt, Option.empty(), Option.empty(), false), Option.empty());
      return null;
    });
  }

  /**
   * The snapshot, or a private copy of it.
   *
   * <p>For a statement that begins at the newest version a Spark job computes the state, within the snapshot's monitor: a
   * commit that asks the same object even for its checksum waits for the job. Of the state itself a commit needs nothing but
   * the ids of rows.
   */
  private static Snapshot ours(Snapshot shared) {
    if (!shared.checksumOpt().isDefined()) return shared;
    Snapshot own = new Snapshot(shared.path(), shared.version(), shared.logSegment(), shared.deltaLog(), shared.checksumOpt());
    return own.protocol().json().contains("\"rowTracking\"") ? shared : own;
  }

  /**
   * A transaction with a given id, whose checkpoint can wait.
   *
   * <p>If a checkpoint is due, Delta computes the table's whole state in a Spark job for its log entry about the commit, before the
   * commit returns.
   */
  private static final class Transaction extends OptimisticTransaction {
    private final String id;
    private final boolean hasCaches = Caches.isOn();
    private final boolean isCheckpointLater;
    private long dueAt = -1;

    private Transaction(String id, DeltaLog log, Snapshot snapshot, boolean isCheckpointLater) {
      super(log, Option.empty(), snapshot);
      this.id = id;
      this.isCheckpointLater = isCheckpointLater && hasCaches;
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
      if (!isDue || !isCheckpointLater) return isDue;
      dueAt = version;
      return false;
    }
  }

  /** Delta takes its settings from the thread's active session. */
  private static <T> T in(SparkSession session, Supplier<T> work) {
    Option<SparkSession> before = SparkSession.getActiveSession();
    SparkSession.setActiveSession(session);
    try {
      return work.get();
    } finally {
      if (before.isDefined()) SparkSession.setActiveSession(before.get());
      else SparkSession.clearActiveSession();
    }
  }
}
