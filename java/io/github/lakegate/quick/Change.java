package io.github.lakegate.quick;

import io.github.lakegate.caches.KnownFile;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaColumnMapping;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.DeltaParquetFileFormatBase;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.commands.DeltaCommand;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/** An analysed statement. */
abstract class Change {
  final SparkSession session;
  final DeltaCommand command;
  final DeltaLog log;
  final Option<CatalogTable> table;
  final Map<String, SQLMetric> metrics;

  Change(SparkSession session, DeltaCommand command, DeltaLog log, Option<CatalogTable> table, Map<String, SQLMetric> metrics) {
    this.session = session;
    this.command = command;
    this.log = log;
    this.table = table;
    this.metrics = metrics;
  }

  /** Reads its source, if it has one and has not read it. */
  void readSource() throws Exception {}

  /** The files that may have rows that match its condition, and these rows. */
  abstract List<FileRows.Found> matching(Collection<KnownFile> files) throws Exception;

  /** The actions of its commit, and its metrics. */
  abstract List<Action> actions(OptimisticTransaction txn, Supplier<Collection<KnownFile>> files) throws Exception;

  abstract DeltaOperations.Operation operation();

  /** The plan whose cached results it makes old. */
  abstract LogicalPlan target();

  /** The columns of its table, as it was analysed. */
  abstract StructType schema();

  /** True if stock Delta commits the token also of a statement that finds no rows. */
  boolean commitsNothing() {
    return true;
  }

  final void set(String metric, long value) {
    metrics.get(metric).set(value);
  }

  /** Delta numbers the rows that are inserted into a table with an identity column. */
  final void refuseIdentity() {
    for (StructField field : schema().fields()) {
      if (field.metadata().contains("delta.identity.start")) throw new QuickStatement.Declined("its table has an identity column");
    }
  }

  /** The columns may have been changed since the analysis. */
  final void checkDefinition(OptimisticTransaction txn) {
    StructField[] analysed = schema().fields();
    StructField[] now = txn.metadata().schema().fields();
    boolean isSame = analysed.length == now.length;
    for (int i = 0; isSame && i < now.length; i++) {
      isSame =
          analysed[i].name().equals(now[i].name())
              && DeltaColumnMapping.getPhysicalName(analysed[i]).equals(DeltaColumnMapping.getPhysicalName(now[i]))
              && DataTypeUtils.sameType(analysed[i].dataType(), now[i].dataType());
    }
    if (!isSame) throw new QuickStatement.Declined("the columns of its table were changed meanwhile");
  }

  static LogicalRelation relation(LogicalPlan target) {
    LogicalPlan node = target;
    while (node instanceof SubqueryAlias alias) node = alias.child();
    if (node instanceof LogicalRelation relation) return relation;
    throw new QuickStatement.Declined("the values of its table are converted when they are read");
  }

  /** The columns of a table as it was analysed, with their names in its files, which its relation does not know. */
  static StructType definition(LogicalRelation relation) {
    if (((HadoopFsRelation) relation.relation()).fileFormat() instanceof DeltaParquetFileFormatBase format) return format.referenceSchema();
    throw new QuickStatement.Declined("its files are of another format");
  }

  /** An expression can be evaluated on single rows of these columns, and always gives the same value. */
  static void require(Expression expression, List<? extends Attribute> columns, String what) {
    if (!expression.deterministic()) throw new QuickStatement.Declined(what + " is not deterministic");
    if (!reads(expression, columns)) throw new QuickStatement.Declined(what + " reads more than its row");
    expression.exists(each -> {
      if (!(each instanceof Unevaluable) || each instanceof Attribute) return false;
      throw new QuickStatement.Declined(what + " has a " + each.getClass().getSimpleName() + ", which only a Spark job evaluates");
    });
  }

  /** True if an expression reads no other columns than these. */
  static boolean reads(Expression expression, List<? extends Attribute> columns) {
    Set<ExprId> known = new HashSet<>();
    for (Attribute each : columns) known.add(each.exprId());
    return QuickStatement.list(expression.references()).stream().allMatch(each -> known.contains(each.exprId()));
  }

  /** The columns that some expressions read. */
  static List<Attribute> readBy(List<Expression> expressions, List<? extends Attribute> columns) {
    List<Attribute> read = new ArrayList<>();
    for (Attribute column : columns) {
      if (expressions.stream().anyMatch(each -> each.references().contains(column))) read.add(column);
    }
    return read;
  }
}
