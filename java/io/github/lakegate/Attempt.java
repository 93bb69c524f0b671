package io.github.lakegate;

import io.github.lakegate.caches.Caches;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import scala.Option;

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

  private Attempt() {}

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
      DeferringTransaction transaction;
      List<Action> parsed = new ArrayList<>();
      try {
        Snapshot newest = Caches.newest(log);
        if (newest.version() != version - 1) newest = Caches.update(log);
        Snapshot own = Caches.isOn() && newest.version() == version - 1 ? ours(newest) : newest;
        String found = own.metadata().id();
        if (own.version() != version - 1 || (table != null && !table.equals(found))) return own.version() + " " + found;
        transaction = new DeferringTransaction(session, id, log, Option.empty(), own, hasLater);
        // A second lock: if the session's settings were ever ignored, a winning commit that has files would still be seen.
        if (!isBlind) transaction.readWholeTable();
        actions.lines().forEach(line -> parsed.add(Action.fromJson(line)));
      } catch (Exception failed) {
        throw new NotBegun(failed);
      }
      DeltaOperations.Operation update = new DeltaOperations.Update(Option.empty());
      return String.valueOf(
          Gate.within(token, history, job, () -> transaction.commitHidden(parsed, update, tags == null ? Map.of() : tags)));
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

  /** Delta takes its settings from the thread's active session. */
  static <T> T in(SparkSession session, Supplier<T> work) {
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
