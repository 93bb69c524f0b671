package io.github.lakegate.quick;

import io.delta.tables.DeltaMergeBuilder;
import io.github.lakegate.DeferringTransaction;
import io.github.lakegate.Parts;
import io.github.lakegate.caches.Caches;
import io.github.lakegate.caches.KnownFile;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.SetTransaction;
import org.apache.spark.sql.delta.commands.DeleteCommand;
import org.apache.spark.sql.delta.commands.MergeIntoCommand;
import org.apache.spark.sql.delta.commands.UpdateCommand;
import org.apache.spark.sql.execution.CommandExecutionMode$;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * A statement that changes few rows, which is executed in the calling thread, without a Spark job.
 *
 * <p>Spark and Delta analyse and optimize the statement as usual. Delta's own reader reads the rows, Spark's interpreted expressions
 * test and change them, and Delta's own writer writes files and their statistics. The commit goes through Delta's transaction: its
 * actions, metrics and history are those of the stock statement.
 *
 * <p>What is not served is left to stock Delta, also if the analysis or the execution fails: the statement then fails there with its
 * own error.
 */
public final class QuickStatement {
  /** More rows are found and changed faster by Spark. */
  static final int ROWS_MAX = 10_000;

  private static final long CHECKSUM_NANOS = TimeUnit.SECONDS.toNanos(2);
  private static final long CHECKSUM_POLL_MS = 5;

  /** The statement is left to stock Delta; the message says why. Nothing was committed. */
  static final class Declined extends RuntimeException {
    private static final long serialVersionUID = 1;

    Declined(String reason) {
      super(reason, null, false, false);
    }
  }

  /** Makes the change of a statement. */
  private interface Analysis {
    Change change() throws Exception;
  }

  private final SparkSession session;
  private final Change change; // null: it is not served
  private final String declined;

  private QuickStatement(SparkSession session, Analysis analysis) {
    this.session = session;
    Change change = null;
    String declined = null;
    try {
      change = analysis.change();
    } catch (Declined reason) {
      declined = reason.getMessage();
    } catch (Exception | LinkageError failed) {
      declined = "its analysis failed: " + failed;
    }
    this.change = change;
    this.declined = declined;
  }

  /** @param statement as parsed, or made of resolved parts */
  public static QuickStatement of(SparkSession session, LogicalPlan statement) {
    return new QuickStatement(session, () -> analysed(session, statement));
  }

  public static QuickStatement of(SparkSession session, DeltaMergeBuilder merge) {
    return new QuickStatement(session, () -> analysed(session, Merge.plan(session, merge)));
  }

  /** An INSERT of the rows of a query into the table at a path, as a writer of data frames makes it. */
  public static QuickStatement appending(SparkSession session, String path, LogicalPlan query) {
    return new QuickStatement(session, () -> new Insert(session, DeltaLog.forTable(session, new Path(path)), Option.empty(), query));
  }

  private static Change analysed(SparkSession session, LogicalPlan statement) {
    LogicalPlan command = session.sessionState().executePlan(statement, CommandExecutionMode$.MODULE$.SKIP()).optimizedPlan();
    if (command instanceof DeleteCommand delete) return RowChange.of(session, delete);
    if (command instanceof UpdateCommand update) return RowChange.of(session, update);
    if (command instanceof MergeIntoCommand merge) return new Merge(session, merge);
    if (command instanceof AppendData append) return Insert.of(session, append);
    throw new Declined("a statement of this kind is not served");
  }

  /** Why it is left to stock Delta, as far as the analysis shows; null if its rows and files decide. */
  public String declined() {
    return declined;
  }

  /**
   * Executes it.
   *
   * @param adds the files on which it is executed, as `add` actions, one per line; null: those of its table
   * @param version with files: the version whose definition of the table they have, which must be the newest that is known
   * @param bytesMax the memory of the lists of files that are kept, and that of their keys
   * @param id of its transaction, with which the caller calls {@link DeferringTransaction#finish} after the commit
   * @return null if it was executed, also if it had nothing to do; otherwise why it is left to stock Delta
   */
  public String run(String adds, long version, long bytesMax, String id) throws IOException, InterruptedException {
    if (change == null) return declined;
    KnownKeys.limit(bytesMax);
    try {
      readSource();
      if (adds == null) {
        execute(null, newest(change.log), bytesMax, id);
        return null;
      }
      Snapshot snapshot = change.log.unsafeVolatileSnapshot();
      if (snapshot.version() != version) throw new Declined("another commit came meanwhile");
      execute(files(adds), snapshot, bytesMax, id);
      return null;
    } catch (Declined reason) {
      return reason.getMessage();
    }
  }

  /**
   * The rows of files that match its condition; of a MERGE, those that match a row of its source.
   *
   * @param adds as for {@link #run}
   * @return for each file that was read a line with its path and the numbers of such rows; null if this is not served
   */
  public String find(String adds) throws IOException {
    if (change == null) return null;
    try {
      Served.check(change.log.unsafeVolatileSnapshot().protocol());
      readSource();
      StringBuilder found = new StringBuilder();
      for (FileRows.Found each : change.matching(files(adds))) {
        found.append(each.file.path());
        for (long row : each.matched.toArray()) found.append(' ').append(row);
        found.append('\n');
      }
      return Parts.of(found.toString());
    } catch (Exception | LinkageError failed) {
      return null; // Spark repeats it, and reports the failure
    }
  }

  /** Before the transaction, which is short. */
  private void readSource() {
    try {
      change.readSource();
    } catch (Declined declined) {
      throw declined;
    } catch (Exception | LinkageError failed) {
      throw new Declined("its source cannot be read: " + failed);
    }
  }

  private static List<KnownFile> files(String adds) throws IOException {
    List<KnownFile> files = new ArrayList<>();
    for (String line : adds.split("\n")) files.add(new KnownFile((AddFile) Action.fromJson(line)));
    return files;
  }

  /** With its checksum, if a commit of this JVM is about to write one. */
  static Snapshot newest(DeltaLog log) throws InterruptedException {
    Snapshot newest = Caches.update(log);
    long untilNanos = System.nanoTime() + CHECKSUM_NANOS;
    for (boolean isOpen = true; isOpen && !newest.checksumOpt().isDefined(); newest = Caches.update(log)) {
      isOpen = DeferringTransaction.isOpen(log) && System.nanoTime() - untilNanos < 0;
      if (isOpen) Thread.sleep(CHECKSUM_POLL_MS);
    }
    return newest;
  }

  private void execute(Collection<KnownFile> files, Snapshot snapshot, long bytesMax, String id) {
    DeferringTransaction txn = new DeferringTransaction(session, id, change.log, change.table, snapshot, true);
    OptimisticTransaction.withActive(txn, false, () -> {
      if (files == null && change.command.hasBeenExecuted(txn, session, Option.empty())) return null;
      List<Action> actions;
      try {
        actions = computed(txn, files == null ? () -> known(txn, bytesMax) : () -> files);
      } catch (Declined declined) {
        throw declined;
      } catch (Exception | LinkageError failed) {
        throw new Declined("the quick execution failed: " + failed + (failed.getCause() == null ? "" : ": " + failed.getCause()));
      }
      if (!actions.isEmpty()) txn.commitHidden(actions, change.operation(), Map.of());
      return null;
    });
    if (!session.sharedState().cacheManager().isEmpty()) {
      session.sharedState().cacheManager().recacheByPlan(session, change.target());
    }
  }

  private List<Action> computed(OptimisticTransaction txn, Supplier<Collection<KnownFile>> files) throws Exception {
    long began = System.nanoTime();
    Served.check(txn.protocol());
    change.checkDefinition(txn);
    for (SQLMetric each : change.metrics.values()) each.set(0); // the command may have been executed before
    List<Action> actions = new ArrayList<>(change.actions(txn, files));
    if (change.metrics.containsKey("executionTimeMs")) change.set("executionTimeMs", (System.nanoTime() - began) / 1_000_000);
    txn.registerSQLMetrics(session, PythonUtils.toScalaMap(change.metrics));
    if (!actions.isEmpty() || change.commitsNothing()) {
      Option<SetTransaction> token = change.command.createSetTransaction(session, change.log, Option.empty());
      if (token.isDefined()) actions.add(0, token.get());
    }
    return actions;
  }

  private static Collection<KnownFile> known(OptimisticTransaction txn, long bytesMax) {
    if (!txn.snapshot().checksumOpt().isDefined()) throw new Declined("the newest version of its table has no checksum yet");
    if (txn.snapshot().checksumOpt().get().numFiles() > Caches.FILES_MAX) {
      throw new Declined("its table has more than " + Caches.FILES_MAX + " files");
    }
    Collection<KnownFile> known = Caches.files(txn.snapshot(), bytesMax);
    if (known == null) throw new Declined("the list of its files needs more than spark.lakegate.quickBytesMax, or is not certain");
    return known;
  }

  static scala.collection.immutable.Map<String, String> none() {
    return PythonUtils.toScalaMap(Map.of());
  }

  static <K, V> Map<K, V> map(scala.collection.Iterable<Tuple2<K, V>> values) {
    Map<K, V> map = new HashMap<>();
    for (Tuple2<K, V> each : list(values)) map.put(each._1(), each._2());
    return map;
  }

  static <T> List<T> list(scala.collection.Iterable<T> values) {
    List<T> list = new ArrayList<>();
    for (Iterator<T> each = values.iterator(); each.hasNext(); ) list.add(each.next());
    return list;
  }

  static <T> Seq<T> seq(List<? extends T> values) {
    return PythonUtils.toSeq(new ArrayList<T>(values));
  }
}
