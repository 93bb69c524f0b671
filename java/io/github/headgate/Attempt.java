package io.github.headgate;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
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
 * <p>In two calls from Python: with as many statements as cores each call waits for a core, and others wait for the commit.
 */
public final class Attempt {
  private final SparkSession session;
  private final DeltaLog log;
  private final Transaction transaction;
  private final List<Action> actions = new ArrayList<>();
  private final Map<String, String> tags;
  private final List<PostCommitHook> left = new ArrayList<>();

  private Attempt(SparkSession session, DeltaLog log, Transaction transaction, Map<String, String> tags) {
    this.session = session;
    this.log = log;
    this.transaction = transaction;
    this.tags = tags;
  }

  /**
   * Begins one; null where the table's newest version is not the one before, or is another table's.
   *
   * @param session its settings are those of the commit
   * @param id by which the commit is known in the log: who asks for it must know it though no answer comes
   * @param version of the commit
   * @param table its id, or null: whichever is there
   * @param actions as in the log, a line each, without `commitInfo`
   * @param tags of the commit, or null
   * @param isBlind whether the actions depend on nothing in the table
   */
  public static Attempt begin(
      SparkSession session, String id, DeltaLog log, long version, String table, String actions, Map<String, String> tags,
      boolean isBlind) {
    return in(session, () -> {
      Snapshot newest = LastingSnapshot.prefer(log);
      if (newest.version() != version - 1) newest = LastingSnapshot.update(log);
      if (newest.version() != version - 1) return null;
      Snapshot own = ours(newest);
      if (table != null && !table.equals(own.metadata().id())) return null;
      Attempt attempt = new Attempt(session, log, new Transaction(id, log, own), tags == null ? Map.of() : tags);
      // The second lock: were the session's settings ever not seen, a winner that has files would still be.
      if (!isBlind) attempt.transaction.readWholeTable();
      actions.lines().forEach(line -> attempt.actions.add(Action.fromJson(line)));
      return attempt;
    });
  }

  /**
   * The version at which it landed.
   *
   * @param hasLater `finish` will do what Delta does after a commit (checksum, checkpoint)
   * @param token of the statement that commits, and its history: see {@link Gate#enter}; or null: as the thread commits anyway
   * @param job as which it commits, or null: see {@link Gate#actAs}
   */
  public long commit(boolean hasLater, String token, String history, String job) {
    if (hasLater) {
      for (Iterator<PostCommitHook> hooks = transaction.postCommitHooks().iterator(); hooks.hasNext(); ) left.add(hooks.next());
      transaction.postCommitHooks().clear();
      transaction.isCheckpointLater = true;
    }
    DeltaOperations.Operation operation = new DeltaOperations.Update(Option.empty());
    OpenCommits.begin();
    try {
      return in(session, () -> Gate.within(token, history, job, () -> {
        long version = transaction.commit(PythonUtils.toSeq(actions), operation, PythonUtils.toScalaMap(tags));
        LastingSnapshot.install(log);
        return version;
      }));
    } finally {
      OpenCommits.end();
      while (log.snapshotLock().isHeldByCurrentThread()) log.snapshotLock().unlock();
    }
  }

  /**
   * What was left to be done after the commit, but for the checkpoint: all of it may be left out, and a later commit makes up for it.
   * True if a checkpoint is due.
   */
  public boolean finish() {
    return in(session, () -> {
      for (PostCommitHook hook : left) hook.run(session, transaction.getCommitted().get());
      return transaction.dueAt >= 0;
    });
  }

  /** Writes the one that is due. */
  public void checkpoint() {
    in(session, () -> {
      log.checkpoint(log.getSnapshotAt(transaction.dueAt, Option.empty(), Option.empty(), false), Option.empty());
      return null;
    });
  }

  /**
   * The snapshot, or a copy that nobody else has.
   *
   * <p>A statement that begins at the newest version has its state computed by a Spark job, within the snapshot's monitor:
   * a commit that asks the same object for as much as its checksum waits for the job. Of the state itself a commit needs
   * nothing but the ids of rows.
   */
  private static Snapshot ours(Snapshot shared) {
    if (!shared.checksumOpt().isDefined()) return shared;
    Snapshot own = new Snapshot(shared.path(), shared.version(), shared.logSegment(), shared.deltaLog(), shared.checksumOpt());
    return own.protocol().json().contains("\"rowTracking\"") ? shared : own;
  }

  /**
   * A transaction with an id that was given to it, whose checkpoint can wait.
   *
   * <p>Where one is due, Delta sums up the table's whole state in a job of Spark for what it says of the commit, before the commit
   * returns.
   */
  private static final class Transaction extends OptimisticTransaction {
    private final String id;
    private final DeltaLog log;
    private boolean isCheckpointLater;
    private long dueAt = -1;

    private Transaction(String id, DeltaLog log, Snapshot snapshot) {
      super(log, Option.empty(), snapshot);
      this.id = id;
      this.log = log;
    }

    @Override
    public String txnId() {
      return id;
    }

    /** After the put. Who lists the log next, in Delta's lock, finds that Delta has the version already, and its checksum. */
    @Override
    public Option<VersionChecksum> incrementallyDeriveChecksum(long version, CurrentTransactionInfo committed) {
      Option<VersionChecksum> checksum = super.incrementallyDeriveChecksum(version, committed);
      log.snapshotLock().lock();
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
