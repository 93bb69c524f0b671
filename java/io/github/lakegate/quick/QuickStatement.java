package io.github.lakegate.quick;

import io.github.lakegate.Parts;
import io.github.lakegate.caches.Caches;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.SetTransaction;
import org.apache.spark.sql.delta.commands.DeleteCommand;
import org.apache.spark.sql.delta.commands.DeltaCommand;
import org.apache.spark.sql.delta.commands.UpdateCommand;
import org.apache.spark.sql.execution.CommandExecutionMode$;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * Executes a DELETE or an UPDATE of few rows in the calling thread, without a Spark job.
 *
 * <p>Spark and Delta analyse and optimize the statement as usual. Delta's own reader reads the rows, Spark's interpreted expressions
 * test and change them, and Delta's own writer writes files and their statistics. The commit goes through Delta's transaction: its
 * actions, metrics and history are those of the stock statement.
 *
 * <p>What is not served is left to stock Delta, also if the execution fails: the statement then fails there with its own error.
 */
public final class QuickStatement {
  /** More rows are found and changed faster by Spark. */
  static final int ROWS_MAX = 10_000;

  /** The statement is left to stock Delta; the message says why. Nothing was committed. */
  static final class Declined extends RuntimeException {
    private static final long serialVersionUID = 1;

    Declined(String reason) {
      super(reason, null, false, false);
    }
  }

  /** An analysed statement. `updates`: the new values of all columns; null for a DELETE. */
  private record Change(
      SparkSession session,
      DeltaCommand command,
      DeltaLog log,
      Option<CatalogTable> table,
      LogicalPlan target,
      Option<Expression> condition,
      Seq<Expression> updates,
      scala.collection.immutable.Map<String, SQLMetric> metrics,
      Predicate<OptimisticTransaction> writesVectors) {}

  private QuickStatement() {}

  /**
   * The command that stock Delta would execute; null if this version of Spark lacks a method that is needed to find out.
   *
   * @param statement as parsed, or made of resolved parts
   */
  public static LogicalPlan analysed(SparkSession session, LogicalPlan statement) {
    try {
      return session.sessionState().executePlan(statement, CommandExecutionMode$.MODULE$.SKIP()).optimizedPlan();
    } catch (LinkageError lacking) {
      return null;
    }
  }

  /**
   * Executes a command.
   *
   * @param adds the files on which it is executed, as `add` actions, one per line; null: those of its table
   * @param version with files: the version whose definition of the table they have, which must be the newest that is known
   * @return null if it was executed, also if it had nothing to do; otherwise why it is left to stock Delta
   */
  public static String run(SparkSession session, LogicalPlan command, String adds, long version) throws IOException {
    try {
      Change change = of(session, command);
      if (adds == null) {
        execute(change, null, Option.empty());
        return null;
      }
      Snapshot snapshot = change.log.unsafeVolatileSnapshot();
      if (snapshot.version() != version) throw new Declined("another commit came meanwhile");
      execute(change, files(adds), Option.apply(snapshot));
      return null;
    } catch (Declined declined) {
      return declined.getMessage();
    }
  }

  /**
   * The rows of files that match the condition of a command.
   *
   * @param adds as for {@link #run}
   * @return for each file with such rows a line with its path and the numbers of the rows; null if this is not served
   */
  public static String find(SparkSession session, LogicalPlan command, String adds) throws IOException {
    try {
      Change change = of(session, command);
      Served.check(change.log.unsafeVolatileSnapshot().protocol());
      FileRows reader = new FileRows(session, change.log, relation(change), condition(change), false);
      StringBuilder found = new StringBuilder();
      for (FileRows.Found each : reader.find(files(adds))) {
        found.append(each.file.path());
        for (long row : each.matched.toArray()) found.append(' ').append(row);
        found.append('\n');
      }
      return Parts.of(found.toString());
    } catch (Declined declined) {
      return null;
    } catch (Exception | LinkageError failed) {
      return null; // Spark repeats it, and reports the failure
    }
  }

  private static List<AddFile> files(String adds) throws IOException {
    List<AddFile> files = new ArrayList<>();
    for (String line : adds.split("\n")) files.add((AddFile) Action.fromJson(line));
    return files;
  }

  private static Change of(SparkSession session, LogicalPlan command) {
    if (command instanceof DeleteCommand delete) return of(session, delete);
    if (command instanceof UpdateCommand update) return of(session, update);
    throw new Declined("it is neither a DELETE nor an UPDATE");
  }

  private static Change of(SparkSession session, DeleteCommand delete) {
    Predicate<OptimisticTransaction> writesVectors = txn -> delete.shouldWritePersistentDeletionVectors(session, txn);
    return new Change(
        session, delete, delete.deltaLog(), delete.catalogTable(), delete.target(), delete.condition(), null, delete.metrics(), writesVectors);
  }

  private static Change of(SparkSession session, UpdateCommand update) {
    Predicate<OptimisticTransaction> writesVectors = txn -> update.shouldWritePersistentDeletionVectors(session, txn);
    return new Change(
        session, update, update.tahoeFileIndex().deltaLog(), update.catalogTable(), update.target(), update.condition(),
        update.updateExpressions(), update.metrics(), writesVectors);
  }

  private static void execute(Change change, List<AddFile> files, Option<Snapshot> snapshot) {
    change.log.withNewTransaction(change.table, snapshot, txn -> {
      if (files == null && change.command.hasBeenExecuted(txn, change.session, Option.empty())) return null;
      List<Action> actions;
      DeltaOperations.Operation operation;
      try {
        actions = computed(change, txn, files);
        operation =
            change.updates == null ? new DeltaOperations.Delete(change.condition.toList()) : new DeltaOperations.Update(change.condition);
        txn.registerSQLMetrics(change.session, change.metrics);
        if (change.updates != null || !actions.isEmpty()) { // as stock Delta: an UPDATE without rows commits its token
          Option<SetTransaction> token = change.command.createSetTransaction(change.session, change.log, Option.empty());
          if (token.isDefined()) actions.add(0, token.get());
        }
      } catch (Declined declined) {
        throw declined;
      } catch (Exception | LinkageError failed) {
        throw new Declined("the quick execution failed: " + failed);
      }
      if (!actions.isEmpty()) txn.commitIfNeeded(seq(actions), operation, none());
      return null;
    });
    change.session.sharedState().cacheManager().recacheByPlan(change.session, change.target);
  }

  private static List<Action> computed(Change change, OptimisticTransaction txn, List<AddFile> files) throws Exception {
    long began = System.nanoTime();
    for (SQLMetric each : map(change.metrics).values()) each.set(0); // the command may have been executed before
    LogicalRelation relation = relation(change);
    Expression condition = condition(change);
    if (change.updates != null) for (Expression each : list(change.updates)) require(each, relation, "a value that it assigns");
    DeltaLog.assertRemovable(txn.snapshot());
    Served.check(txn.protocol());
    if (change.updates != null) Served.checkWrite(txn);
    if (!change.writesVectors.test(txn)) throw new Declined("it does not write deletion vectors");
    if (files == null) {
      Seq<AddFile> known = Caches.files(txn.snapshot());
      if (known == null) throw new Declined("its table has too many files, or their list is not certain");
      files = list(known);
    }
    FileRows reader = new FileRows(change.session, change.log, relation, condition, change.updates != null);
    List<FileRows.Found> found = reader.find(files);
    long scanned = System.nanoTime();
    List<Action> actions = new ArrayList<>();
    Marks marks = new Marks(txn);
    marks.add(found, actions);
    long rows = found.stream().mapToLong(FileRows.Found::count).sum();
    set(change, "numRemovedFiles", change.updates == null ? marks.removed : found.size());
    set(change, "numDeletionVectorsAdded", marks.added);
    set(change, "numDeletionVectorsRemoved", marks.dropped);
    set(change, "numDeletionVectorsUpdated", marks.updated);
    set(change, "scanTimeMs", (scanned - began) / 1_000_000);
    if (change.updates == null) {
      set(change, "numDeletedRows", rows);
    } else {
      set(change, "numUpdatedRows", rows);
      set(change, "numTouchedRows", rows);
      if (rows > 0) {
        List<AddFile> added = updated(change, txn, relation, found, actions);
        set(change, "numAddedFiles", added.size());
        set(change, "numAddedBytes", added.stream().mapToLong(AddFile::size).sum());
      }
      set(change, "rewriteTimeMs", (System.nanoTime() - scanned) / 1_000_000);
    }
    set(change, "executionTimeMs", (System.nanoTime() - began) / 1_000_000);
    return actions;
  }

  private static List<AddFile> updated(
      Change change, OptimisticTransaction txn, LogicalRelation relation, List<FileRows.Found> found, List<Action> actions)
      throws Exception {
    Seq<Attribute> columns = seq(list(relation.output()));
    InterpretedMutableProjection values = new InterpretedMutableProjection(change.updates, columns);
    RowFiles writer = new RowFiles(change.session, txn, columns, UpdateCommand.shouldOutputCdc(txn));
    for (FileRows.Found each : found) {
      for (InternalRow before : each.rows) writer.update(before, values.apply(before).copy());
    }
    List<AddFile> added = writer.end(actions);
    set(change, "numAddedChangeFiles", writer.changeFiles);
    set(change, "changeFileBytes", writer.changeBytes);
    set(change, "numRemovedBytes", writer.changeBytes); // as stock Delta counts them
    return added;
  }

  private static LogicalRelation relation(Change change) {
    LogicalPlan node = change.target;
    while (node instanceof SubqueryAlias alias) node = alias.child();
    if (node instanceof LogicalRelation relation) return relation;
    throw new Declined("the values of its table are converted when they are read");
  }

  private static Expression condition(Change change) {
    if (!change.condition.isDefined()) throw new Declined("it changes all rows");
    Expression condition = change.condition.get();
    LogicalRelation relation = relation(change);
    require(condition, relation, "its condition");
    Set<String> partitions = Set.of(((HadoopFsRelation) relation.relation()).partitionSchema().fieldNames());
    boolean readsData = list(condition.references()).stream().anyMatch(each -> !partitions.contains(each.name()));
    if (condition.references().size() == 0) throw new Declined("it changes all rows, or none");
    if (!readsData) throw new Declined("it changes whole partitions");
    return condition;
  }

  /** An expression can be evaluated on single rows of the table alone, and always gives the same value. */
  private static void require(Expression expression, LogicalRelation relation, String what) {
    if (!expression.deterministic()) throw new Declined(what + " is not deterministic");
    if (!expression.references().subsetOf(relation.outputSet())) throw new Declined(what + " reads more than its row");
    expression.exists(each -> {
      if (!(each instanceof Unevaluable) || each instanceof Attribute) return false;
      throw new Declined(what + " has a " + each.getClass().getSimpleName() + ", which only a Spark job evaluates");
    });
  }

  private static void set(Change change, String metric, long value) {
    change.metrics.get(metric).get().set(value);
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
