package io.github.lakegate.quick;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.commands.cdc.CDCReader;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import scala.Option;

/** Reads the rows that small commits changed, with Delta's own reader and without a Spark job. */
public final class FeedRows {
  /** The declared type of a column that Spark keeps as a string; Spark pads a CHAR when it reads it. */
  private static final String DECLARED = "__CHAR_VARCHAR_TYPE_STRING";

  private static final Pattern CHAR = Pattern.compile("(?<!var)char\\(");

  private final SparkSession session;
  private final DeltaLog log;
  private final LogicalRelation table;
  private final List<AttributeReference> columns;
  private FileRows ofData;
  private FileRows ofChanges;
  private final List<InternalRow> rows = new ArrayList<>();

  private FeedRows(SparkSession session, DeltaLog log, Snapshot snapshot) {
    this.session = session;
    this.log = log;
    table = relation(log.createRelation(QuickStatement.seq(List.of()), Option.apply(snapshot), Option.empty(), true));
    columns = QuickStatement.list(table.output());
  }

  /**
   * The changed rows.
   *
   * @param snapshot a version in which the table has the definition that it had in these commits
   * @param reads a line for each file: the version; `true` for inserted rows, `false` for deleted ones, nothing for a
   *     file of changes, which says it itself; its `add`; and if only rows are read that another vector marks, the `add` with that
   *     vector. They are separated by tabs
   * @param ofVersion the name of a column for the version, which follows those of the table
   * @param ofCome the name of a column for whether the row was inserted, which follows it
   * @return null if Spark has to read them
   */
  public static Dataset<Row> of(SparkSession session, DeltaLog log, Snapshot snapshot, String reads, String ofVersion, String ofCome) {
    try {
      Served.check(snapshot.protocol());
      if (!CDCReader.isCDCEnabledOnTable(snapshot.metadata(), session)) return null;
      for (StructField each : snapshot.metadata().schema().fields()) {
        if (each.metadata().contains(DECLARED) && CHAR.matcher(each.metadata().getString(DECLARED)).find()) return null;
      }
      FeedRows feed = new FeedRows(session, log, snapshot);
      FileRows.Budget budget = new FileRows.Budget();
      if (!reads.isEmpty()) for (String line : reads.split("\n")) feed.read(line.split("\t", -1), budget);
      List<Attribute> columns = new ArrayList<>();
      for (AttributeReference each : feed.columns) columns.add(column(each.name(), each.dataType()));
      columns.add(column(ofVersion, DataTypes.LongType));
      columns.add(column(ofCome, DataTypes.BooleanType));
      return Dataset.ofRows(
          session, new LocalRelation(QuickStatement.seq(columns), QuickStatement.seq(feed.rows), false, Option.empty()));
    } catch (Exception | LinkageError failed) {
      return null; // Spark repeats it, and reports the failure
    }
  }

  private void read(String[] line, FileRows.Budget budget) throws Exception {
    long version = Long.parseLong(line[0]);
    AddFile file = (AddFile) Action.fromJson(line[2]);
    budget.take(file);
    if (!line[1].isEmpty()) {
      if (ofData == null) ofData = reader(table);
      RoaringBitmapArray places = line[3].isEmpty() ? null : ofData.marked((AddFile) Action.fromJson(line[3]));
      boolean hasCome = Boolean.parseBoolean(line[1]);
      for (InternalRow row : ofData.rows(file, places).rows) add(row, version, hasCome);
      return;
    }
    if (ofChanges == null) ofChanges = reader(withType(table));
    for (InternalRow row : ofChanges.rows(file, null).rows) {
      String type = row.get(columns.size(), DataTypes.StringType).toString();
      add(row, version, type.equals("insert") || type.equals("update_postimage"));
    }
  }

  private void add(InternalRow row, long version, boolean hasCome) {
    Object[] values = new Object[columns.size() + 2];
    for (int i = 0; i < columns.size(); i++) values[i] = row.get(i, columns.get(i).dataType());
    values[columns.size()] = version;
    values[columns.size() + 1] = hasCome;
    rows.add(new GenericInternalRow(values));
    if (rows.size() > QuickStatement.ROWS_MAX) throw new QuickStatement.Declined("many rows were changed");
  }

  private FileRows reader(LogicalRelation relation) {
    return new FileRows(
        session, log, relation, Literal.create(true, DataTypes.BooleanType), new ArrayList<>(QuickStatement.list(relation.output())));
  }

  /** The relation of files of changes; source: `CDCReader.scanIndex`. */
  private LogicalRelation withType(LogicalRelation relation) {
    HadoopFsRelation files = (HadoopFsRelation) relation.relation();
    return relation(
        new HadoopFsRelation(
            files.location(), files.partitionSchema(), files.dataSchema().add(CDCReader.CDC_TYPE_COLUMN_NAME(), DataTypes.StringType, true),
            Option.empty(), files.fileFormat(), files.options(), session));
  }

  private static LogicalRelation relation(BaseRelation relation) {
    return LogicalRelation$.MODULE$.apply(relation, false);
  }

  private static AttributeReference column(String name, DataType type) {
    return new AttributeReference(name, type, true, Metadata.empty(), NamedExpression.newExprId(), QuickStatement.seq(List.of()));
  }
}
