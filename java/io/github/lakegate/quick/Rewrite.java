package io.github.lakegate.quick;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.types.DataTypes;

/** Replaces the files that a statement changes, where its table has no deletion vectors: their other rows are written again. */
final class Rewrite {
  private final SparkSession session;
  private final DeltaLog log;
  private final LogicalRelation relation;
  int removed;
  long removedBytes;
  long copied;

  Rewrite(SparkSession session, DeltaLog log, LogicalRelation relation) {
    this.session = session;
    this.log = log;
    this.relation = relation;
  }

  /** Refuses files with many rows, before any of them is written. */
  static void check(List<FileRows.Found> changed) {
    long rows = 0;
    for (FileRows.Found each : changed) {
      if (!each.file.numPhysicalRecords().isDefined()) throw new QuickStatement.Declined("a file has no statistics");
      if (each.file.deletionVector() != null) throw new QuickStatement.Declined("it rewrites a file with a deletion vector");
      rows += (Long) each.file.numPhysicalRecords().get();
    }
    if (rows > QuickStatement.ROWS_MAX) throw new QuickStatement.Declined("it rewrites more than " + QuickStatement.ROWS_MAX + " rows");
  }

  /**
   * Removes the files, and writes the rows again that the statement leaves as they are.
   *
   * @param hasStatistics stock Delta says how many rows the removed files had
   */
  void add(List<FileRows.Found> changed, RowFiles writer, boolean hasStatistics, List<Action> actions) throws Exception {
    if (changed.isEmpty()) return;
    List<Attribute> columns = new ArrayList<>(QuickStatement.list(relation.output()));
    FileRows all = new FileRows(session, log, relation, Literal.create(true, DataTypes.BooleanType), columns);
    long now = System.currentTimeMillis();
    for (FileRows.Found each : changed) {
      FileRows.Found whole = all.rows(each.file, null);
      for (int i = 0; i < whole.rows.size(); i++) {
        if (each.matched.contains(whole.numbers.get(i))) continue;
        writer.copy(whole.rows.get(i));
        copied++;
      }
      actions.add((hasStatistics ? each.file : RowFiles.withStatistics(each.file, null)).removeWithTimestamp(now, true));
      removed++;
      removedBytes += each.file.size();
    }
  }
}
