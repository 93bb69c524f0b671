package io.github.headgate;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import scala.Option;
import scala.collection.Iterator;

/**
 * An attempt to commit actions as the version after a snapshot, by Delta's own transaction.
 *
 * <p>In three calls from Python: with as many statements as cores each call waits for a core, and others wait for the
 * commit.
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
   * Begins one.
   *
   * @param session its settings are those of the commit
   * @param actions as in the log, a line each, without `commitInfo`
   * @param tags of the commit
   * @param isBlind whether the actions depend on nothing in the table
   */
  public static Attempt begin(
      SparkSession session, DeltaLog log, Snapshot snapshot, String actions, Map<String, String> tags, boolean isBlind) {
    return in(session, () -> {
      Attempt attempt = new Attempt(session, log, new Transaction(log, ours(snapshot)), tags);
      // The second lock: were the session's settings ever not seen, a winner that has files would still be.
      if (!isBlind) attempt.transaction.readWholeTable();
      actions.lines().forEach(line -> attempt.actions.add(Action.fromJson(line)));
      return attempt;
    });
  }

  /** The id by which the commit is known in the log. */
  public String id() {
    return transaction.txnId();
  }

  /**
   * The version at which it landed.
   *
   * @param hasLater `finish` will do what Delta does after a commit (checksum, checkpoint)
   */
  public long commit(boolean hasLater) {
    return in(session, () -> {
      if (hasLater) {
        for (Iterator<PostCommitHook> hooks = transaction.postCommitHooks().iterator(); hooks.hasNext(); ) {
          left.add(hooks.next());
        }
        transaction.postCommitHooks().clear();
        transaction.isCheckpointLater = true;
      }
      DeltaOperations.Operation operation = new DeltaOperations.Update(Option.empty());
      long version = transaction.commit(PythonUtils.toSeq(actions), operation, PythonUtils.toScalaMap(tags));
      LastingSnapshot.install(log);
      return version;
    });
  }

  /** What was left to be done after the commit: all of it may be left out, and a later commit makes up for it. */
  public void finish() {
    in(session, () -> {
      for (PostCommitHook hook : left) hook.run(session, transaction.getCommitted().get());
      if (transaction.dueAt >= 0) {
        log.checkpoint(log.getSnapshotAt(transaction.dueAt, Option.empty(), Option.empty(), false), Option.empty());
      }
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
    boolean isOurs =
        shared._computedStateTriggered()
            || !shared.checksumOpt().isDefined()
            || shared.protocol().json().contains("\"rowTracking\"");
    return isOurs
        ? shared
        : new Snapshot(shared.path(), shared.version(), shared.logSegment(), shared.deltaLog(), shared.checksumOpt());
  }

  /**
   * A transaction whose checkpoint can wait.
   *
   * <p>Where one is due, Delta sums up the table's whole state in a job of Spark for what it says of the commit, before the commit
   * returns.
   */
  private static final class Transaction extends OptimisticTransaction {
    private boolean isCheckpointLater;
    private long dueAt = -1;

    private Transaction(DeltaLog log, Snapshot snapshot) {
      super(log, Option.empty(), snapshot);
    }

    @Override
    public boolean isCheckpointNeeded(long version, Snapshot after) {
      boolean isDue = super.isCheckpointNeeded(version, after);
      if (!isDue || !isCheckpointLater) return isDue;
      dueAt = version;
      return false;
    }
  }

  private interface Work<T> {
    T run();
  }

  /** Delta takes its settings from the thread's active session. */
  private static <T> T in(SparkSession session, Work<T> work) {
    Option<SparkSession> before = SparkSession.getActiveSession();
    SparkSession.setActiveSession(session);
    try {
      return work.run();
    } finally {
      if (before.isDefined()) SparkSession.setActiveSession(before.get());
      else SparkSession.clearActiveSession();
    }
  }
}
