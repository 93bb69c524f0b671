package io.github.lakegate.quick;

import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.execution.CommandExecutionMode$;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.Option;

/**
 * The rows of a small query, which are read once.
 *
 * <p>No Spark job runs for rows that the driver has: in the text of a statement, or in a data frame made of an Arrow table.
 */
final class SourceRows {
  private static final long BYTES_MAX = 16L << 20;

  final List<Attribute> columns;
  final List<InternalRow> rows;

  private SourceRows(List<Attribute> columns, List<InternalRow> rows) {
    this.columns = columns;
    this.rows = rows;
  }

  /** @param target the table that the statement changes; a query that reads it is left to stock Delta, which reads one version of it */
  static SourceRows of(SparkSession session, LogicalPlan query, DeltaLog target) {
    LogicalPlan plan = optimized(session, query);
    if (plan.exists(node -> node instanceof CollectMetrics)) throw new QuickStatement.Declined("its source is observed");
    for (LogicalPlan leaf : QuickStatement.list(plan.collectLeaves())) {
      if (leaf instanceof LogicalRelation relation
          && relation.relation() instanceof HadoopFsRelation files
          && files.location() instanceof TahoeFileIndex index
          && index.deltaLog().dataPath().equals(target.dataPath())) {
        throw new QuickStatement.Declined("its source reads its table");
      }
    }
    if (QuickStatement.list(plan.collectLeaves()).stream().anyMatch(SourceRows::isUnknown)) {
      plan = optimized(session, withRows(session, plan));
    }
    if (!(plan instanceof LocalRelation)) {
      if (plan.stats().sizeInBytes().$greater(scala.math.BigInt.apply(BYTES_MAX))) {
        throw new QuickStatement.Declined("its source may be large");
      }
      plan = new LocalRelation(plan.output(), QuickStatement.seq(taken(session, plan)), false, Option.empty());
    }
    List<InternalRow> rows = QuickStatement.list(((LocalRelation) plan).data());
    if (rows.size() > QuickStatement.ROWS_MAX) throw tooMany();
    return new SourceRows(QuickStatement.list(query.output()), rows); // the optimizer may number its columns anew
  }

  private static LogicalPlan optimized(SparkSession session, LogicalPlan query) {
    return session.sessionState().executePlan(query, CommandExecutionMode$.MODULE$.SKIP()).optimizedPlan();
  }

  /** A plan with the rows of each leaf whose size Spark does not know. */
  private static LogicalPlan withRows(SparkSession session, LogicalPlan plan) {
    if (plan instanceof LogicalRDD leaf && leaf.isStreaming()) throw new QuickStatement.Declined("its source is a stream");
    if (!isUnknown(plan)) return plan.mapChildren(child -> withRows(session, child));
    List<InternalRow> rows = taken(session, plan);
    return new LocalRelation(plan.output(), QuickStatement.seq(rows), false, Option.empty());
  }

  private static boolean isUnknown(LogicalPlan leaf) {
    return leaf instanceof LogicalRDD || leaf instanceof InMemoryRelation;
  }

  private static List<InternalRow> taken(SparkSession session, LogicalPlan plan) {
    QueryExecution execution = Dataset.ofRows(session, plan).queryExecution();
    List<InternalRow> rows = List.of(execution.executedPlan().executeTake(QuickStatement.ROWS_MAX + 1));
    if (rows.size() > QuickStatement.ROWS_MAX) throw tooMany();
    long bytes = rows.stream().mapToLong(row -> row instanceof UnsafeRow unsafe ? unsafe.getSizeInBytes() : 0).sum();
    if (bytes > BYTES_MAX) throw new QuickStatement.Declined("its source is large");
    return rows;
  }

  private static QuickStatement.Declined tooMany() {
    return new QuickStatement.Declined("its source has more than " + QuickStatement.ROWS_MAX + " rows");
  }
}
