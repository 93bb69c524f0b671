package io.github.lakegate.quick;

import io.github.lakegate.caches.KnownFile;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.DeltaOptions;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.catalog.DeltaTableV2;
import org.apache.spark.sql.delta.commands.WriteIntoDelta;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/** An INSERT of few rows. */
final class Insert extends Change {
  private final StructType schema;
  private final LogicalPlan query;
  private SourceRows given;

  /** @param query with the columns of the table, in any order */
  Insert(SparkSession session, DeltaLog log, Option<CatalogTable> table, LogicalPlan query) {
    super(session, command(session, log, table), log, table, metrics(session));
    Served.check(log.unsafeVolatileSnapshot().protocol());
    schema = log.unsafeVolatileSnapshot().metadata().schema();
    this.query = query;
    refuseIdentity();
    checkColumns(QuickStatement.list(query.output()));
  }

  static Insert of(SparkSession session, AppendData append) {
    if (!(append.table() instanceof DataSourceV2Relation relation)
        || !(relation.table() instanceof DeltaTableV2 table)
        || table.timeTravelOpt().isDefined()
        || append.writeOptions().size() > 0) {
      throw new QuickStatement.Declined("an INSERT of this kind is not served");
    }
    return new Insert(session, table.deltaLog(), table.catalogTable(), append.query());
  }

  @Override
  DeltaOperations.Operation operation() {
    return new DeltaOperations.Write(
        SaveMode.Append, Option.apply(QuickStatement.<String>seq(List.of())), Option.empty(), Option.empty(), Option.empty(),
        Option.empty(), Option.empty(), Option.empty(), Option.empty());
  }

  @Override
  LogicalPlan target() {
    return LogicalRelation$.MODULE$.apply(log.createRelation(QuickStatement.seq(List.of()), Option.empty(), table, false), false);
  }

  @Override
  StructType schema() {
    return schema;
  }

  @Override
  void readSource() {
    if (given == null) given = SourceRows.of(session, query, log);
  }

  @Override
  List<FileRows.Found> matching(Collection<KnownFile> files) {
    throw new QuickStatement.Declined("an INSERT has no condition");
  }

  @Override
  List<Action> actions(OptimisticTransaction txn, Supplier<Collection<KnownFile>> files) throws Exception {
    Served.checkWrite(txn);
    List<Attribute> columns = new ArrayList<>(); // in the order of the table
    for (String name : schema.fieldNames()) for (Attribute each : given.columns) if (each.name().equals(name)) columns.add(each);
    InterpretedMutableProjection ordered =
        new InterpretedMutableProjection(QuickStatement.<Expression>seq(columns), QuickStatement.seq(given.columns));
    RowFiles writer = new RowFiles(session, txn, QuickStatement.seq(columns), false);
    for (InternalRow row : given.rows) writer.insert(ordered.apply(row).copy());
    List<Action> actions = new ArrayList<>();
    List<AddFile> added = writer.end(actions);
    set("numFiles", added.size());
    set("numOutputBytes", added.stream().mapToLong(AddFile::size).sum());
    set("numOutputRows", given.rows.size());
    return actions;
  }

  /** Delta adapts rows with other columns, or with other types, before it writes them. */
  private void checkColumns(List<Attribute> given) {
    if (given.size() != schema.length()) throw new QuickStatement.Declined("it gives other columns than its table has");
    for (StructField field : schema.fields()) {
      if (CharVarcharUtils$.MODULE$.getRawType(field.metadata()).isDefined()) {
        throw new QuickStatement.Declined("its table has a CHAR or VARCHAR column");
      }
      boolean isGiven =
          given.stream().anyMatch(each -> each.name().equals(field.name()) && DataTypeUtils.sameType(each.dataType(), field.dataType()));
      if (!isGiven) throw new QuickStatement.Declined("it gives other columns than its table has");
    }
  }

  private static WriteIntoDelta command(SparkSession session, DeltaLog log, Option<CatalogTable> table) {
    DeltaOptions options = new DeltaOptions(QuickStatement.none(), session.sessionState().conf());
    return new WriteIntoDelta(
        log, SaveMode.Append, options, QuickStatement.seq(List.of()), QuickStatement.none(), null, table, Option.empty(), false);
  }

  private static Map<String, SQLMetric> metrics(SparkSession session) {
    SQLMetric[] made = new SQLMetric[3];
    String[] names = {"numFiles", "numOutputRows", "numOutputBytes"};
    for (int i = 0; i < made.length; i++) made[i] = SQLMetrics.createMetric(session.sparkContext(), names[i]);
    return Map.of(names[0], made[0], names[1], made[1], names[2], made[2]);
  }
}
