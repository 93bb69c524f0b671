package io.github.lakegate.quick;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.internal.io.SparkHadoopWriterUtils;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaConfigs;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOptions;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddCDCFile;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.commands.cdc.CDCReader;
import org.apache.spark.sql.delta.constraints.CheckDeltaInvariant;
import org.apache.spark.sql.delta.constraints.Constraint;
import org.apache.spark.sql.delta.constraints.Constraints;
import org.apache.spark.sql.delta.constraints.DeltaInvariantCheckerExec;
import org.apache.spark.sql.delta.files.DelayedCommitProtocol;
import org.apache.spark.sql.delta.files.DeltaDynamicPartitionDataSingleWriter;
import org.apache.spark.sql.delta.files.DeltaFileFormatWriter;
import org.apache.spark.sql.delta.files.DeltaSingleDirectoryDataWriter;
import org.apache.spark.sql.delta.hooks.AutoCompact$;
import org.apache.spark.sql.delta.shims.DataSourceUtilsShims;
import org.apache.spark.sql.delta.stats.DeltaJobStatisticsTracker;
import org.apache.spark.sql.delta.util.TableParquetVersionOption;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.FileFormatDataWriter;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.V1WritesUtils;
import org.apache.spark.sql.execution.datasources.WriteJobDescription;
import org.apache.spark.sql.execution.datasources.WriteJobStatsTracker;
import org.apache.spark.sql.execution.datasources.WriteTaskResult;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.SerializableConfiguration;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * Writes rows of a table to new files, with their statistics and the files of its change feed, as a task of Delta's own write does.
 *
 * <p>Source: `TransactionalWrite.writeFiles` and `DeltaFileFormatWriter.write` of Delta.
 */
final class RowFiles {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final UTF8String BEFORE = UTF8String.fromString("update_preimage");
  private static final UTF8String AFTER = UTF8String.fromString("update_postimage");
  private static final UTF8String INSERTED = UTF8String.fromString("insert");
  private static final UTF8String DELETED = UTF8String.fromString("delete");

  /** Of more rows the statistics are computed faster by compiled expressions; Spark writes their code each time. */
  private static final int INTERPRETED_MAX = 1_000;

  private static final Map<String, String> NOT_COMPILED =
      Map.of("spark.sql.codegen.factoryMode", "NO_CODEGEN", "spark.databricks.delta.collectStats.fallbackToInterpretedProjection", "true");

  /** Settings that change with each statement. */
  private static final Set<String> OF_A_STATEMENT = Set.of("spark.databricks.delta.write.txn", "spark.databricks.delta.lastCommitVersionInSession");

  private static final int PREPARED_MAX = 32;
  private static final Map<Key, Prepared> PREPARED = new LinkedHashMap<>();

  /** That on which a preparation depends. */
  private record Key(String session, Metadata metadata, Protocol protocol, boolean isFed, Map<String, String> settings) {}

  /**
   * A prepared write.
   *
   * @param output the columns as they are written
   * @param checked the columns to which `checks`, the constraints, are bound
   * @param ofStatistics the columns of `statistics`, the expression of a file's statistics; null if none are collected
   * @param interpreted settings in which Spark compiles no expressions
   */
  private record Prepared(
      Seq<Attribute> output,
      Seq<Attribute> partitions,
      Seq<Attribute> checked,
      Seq<Expression> checks,
      Seq<Attribute> ofStatistics,
      Expression statistics,
      SQLConf interpreted) {}

  long changeFiles;
  long changeBytes;
  private final SparkSession session;
  private final OptimisticTransaction txn;
  private final List<Attribute> columns;
  private final boolean isFed;
  private final List<InternalRow> rows = new ArrayList<>();

  /**
   * @param columns of the rows: all of the table
   * @param isFed each change is written to files of the change feed
   */
  RowFiles(SparkSession session, OptimisticTransaction txn, Seq<Attribute> columns, boolean isFed) {
    this.session = session;
    this.txn = txn;
    this.columns = QuickStatement.list(columns);
    this.isFed = isFed;
  }

  /** Adds a row that replaces another. */
  void update(InternalRow before, InternalRow after) {
    if (isFed) {
      rows.add(fed(before, BEFORE));
      rows.add(fed(after, AFTER));
      rows.add(fed(after, null));
    } else rows.add(after);
  }

  /** Adds a row that stays as it is. */
  void copy(InternalRow row) {
    rows.add(isFed ? fed(row, null) : row);
  }

  void insert(InternalRow row) {
    if (isFed) {
      rows.add(fed(row, INSERTED));
      rows.add(fed(row, null));
    } else rows.add(row);
  }

  /** Adds a row that is deleted, for the change feed. */
  void delete(InternalRow before) {
    if (isFed) rows.add(fed(before, DELETED));
  }

  private InternalRow fed(InternalRow row, UTF8String change) {
    Object[] values = new Object[columns.size() + 2];
    for (int i = 0; i < columns.size(); i++) values[i] = row.get(i, columns.get(i).dataType());
    values[columns.size()] = change;
    values[columns.size() + 1] = change != null; // as `TransactionalWrite.performCDCPartition` puts it there
    return new GenericInternalRow(values);
  }

  /** Writes the files; adds them to the actions of the commit, and returns those with rows of the table. */
  List<AddFile> end(List<Action> actions) throws Exception {
    if (rows.isEmpty()) return List.of();
    DeltaLog log = txn.deltaLog();
    Metadata metadata = txn.metadata();
    Path root = log.dataPath();
    Prepared prepared = prepared();
    Seq<Attribute> output = prepared.output;
    Seq<Attribute> partitions = prepared.partitions;
    convertEmpty(output, partitions);
    if (prepared.checks.size() > 0) {
      InterpretedMutableProjection checks = new InterpretedMutableProjection(copies(prepared.checks), prepared.checked);
      for (InternalRow row : rows) checks.apply(row); // raises the error of stock Delta if a row violates a constraint
    }
    Option<DeltaJobStatisticsTracker> tracker = Option.empty();
    if (prepared.statistics != null) {
      tracker = Option.apply(new DeltaJobStatisticsTracker(log.newDeltaHadoopConf(), root, prepared.ofStatistics, copy(prepared.statistics)));
    }
    List<WriteJobStatsTracker> trackers = new ArrayList<>();
    if (tracker.isDefined()) trackers.add(tracker.get());
    Map<String, String> settings = new HashMap<>(QuickStatement.map(metadata.configuration()));
    settings.putAll(QuickStatement.map(log.options()));
    Job job = Job.getInstance(session.sessionState().newHadoopConfWithOptions(PythonUtils.toScalaMap(settings)));
    job.setOutputKeyClass(Void.class);
    job.setOutputValueClass(InternalRow.class);
    FileOutputFormat.setOutputPath(job, root);
    WriteJobDescription description = description(job, output, partitions, trackers);
    DelayedCommitProtocol committer = txn.getCommitter(root);
    committer.setupJob(job);
    WriteTaskResult written =
        rows.size() > INTERPRETED_MAX
            ? write(job, description, committer, partitions, output)
            : SQLConf.withExistingConf(prepared.interpreted, () -> write(job, description, committer, partitions, output));
    committer.commitJob(job, QuickStatement.seq(List.of(written.commitMsg())));
    if (tracker.isDefined()) tracker.get().processStats(written.summary().stats(), 0);

    List<AddFile> added = new ArrayList<>();
    for (AddFile file : QuickStatement.list(committer.addedStatuses())) {
      added.add(tracker.isDefined() ? withStatistics(file, tracker.get().recordedStats().get(file.toPath().getName()).get()) : file);
    }
    actions.addAll(added);
    for (AddCDCFile file : QuickStatement.list(committer.changeFiles())) {
      actions.add(file);
      changeFiles++;
      changeBytes += file.size();
    }
    txn.registerPostCommitHook(AutoCompact$.MODULE$);
    return added;
  }

  /** Evaluating an expression changes it: for example it keeps a writer of JSON, which only one thread may use. */
  private static Expression copy(Expression shared) {
    return shared.clone();
  }

  private static Seq<Expression> copies(Seq<Expression> shared) {
    List<Expression> own = new ArrayList<>();
    for (Expression each : QuickStatement.list(shared)) own.add(copy(each));
    return QuickStatement.seq(own);
  }

  /** The preparation of a write of these rows, which is the same until the table's definition or a setting changes. */
  private Prepared prepared() {
    Map<String, String> settings = new HashMap<>(session.sessionState().conf().settings());
    settings.keySet().removeIf(name -> OF_A_STATEMENT.stream().anyMatch(name::startsWith));
    Key key = new Key(session.sessionUUID(), txn.metadata(), txn.protocol(), isFed, settings);
    synchronized (PREPARED) {
      Prepared known = PREPARED.get(key);
      if (known != null) return known;
    }
    Prepared made = prepare();
    synchronized (PREPARED) {
      PREPARED.put(key, made);
      if (PREPARED.size() > PREPARED_MAX) PREPARED.remove(PREPARED.keySet().iterator().next());
    }
    return made;
  }

  private Prepared prepare() {
    List<Attribute> given = new ArrayList<>();
    for (Attribute each : columns) given.add(fresh(each.name(), each.dataType(), each.metadata()));
    if (isFed) given.add(fresh(CDCReader.CDC_TYPE_COLUMN_NAME(), DataTypes.StringType, org.apache.spark.sql.types.Metadata.empty()));
    Dataset<Row> none =
        org.apache.spark.sql.classic.Dataset.ofRows(
            session, LocalRelation.fromExternalRows(QuickStatement.seq(given), QuickStatement.seq(List.of())));
    var parted = txn.performCDCPartition(none);
    var normal = txn.normalizeData(txn.deltaLog(), Option.empty(), parted._1());
    if (normal._4().size() > 0) throw new QuickStatement.Declined("its table has an identity column that it writes");
    List<Constraint> constraints = QuickStatement.list(Constraints.getAll(txn.metadata(), session));
    constraints.addAll(QuickStatement.list(normal._3()));
    Seq<Attribute> checked = normal._1().analyzed().output();
    List<Expression> checks = new ArrayList<>();
    var invariants = DeltaInvariantCheckerExec.buildInvariantChecks(checked, QuickStatement.seq(constraints), session);
    for (CheckDeltaInvariant each : QuickStatement.list(invariants)) {
      if (!each.deterministic() || each.containsPattern(TreePattern.CURRENT_LIKE())) {
        throw new QuickStatement.Declined("a constraint of its table depends on the time of the statement");
      }
      checks.add(each);
    }
    Seq<Attribute> output = normal._2();
    Option<DeltaJobStatisticsTracker> tracker =
        txn.getOptionalStatsTrackerAndStatsCollection(output, txn.deltaLog().dataPath(), parted._2(), parted._1())._1();
    SQLConf interpreted = session.sessionState().conf().clone();
    NOT_COMPILED.forEach(interpreted::setConfString);
    return new Prepared(
        output, txn.getPartitioningColumns(parted._2(), output), checked, QuickStatement.seq(checks),
        tracker.isDefined() ? tracker.get().dataCols() : null, tracker.isDefined() ? tracker.get().statsColExpr() : null, interpreted);
  }

  /** An empty text is NULL in a partition column; constraints are tested afterwards. */
  private void convertEmpty(Seq<Attribute> output, Seq<Attribute> partitions) {
    List<Expression> converted = new ArrayList<>();
    for (NamedExpression each : QuickStatement.list(V1WritesUtils.convertEmptyToNull(output, partitions))) converted.add((Expression) each);
    if (converted.isEmpty()) return;
    InterpretedMutableProjection convert = new InterpretedMutableProjection(QuickStatement.<Expression>seq(converted), output);
    rows.replaceAll(row -> convert.apply(row).copy());
  }

  private WriteJobDescription description(Job job, Seq<Attribute> output, Seq<Attribute> partitions, List<WriteJobStatsTracker> trackers) {
    Metadata metadata = txn.metadata();
    boolean hasPartitions = DeltaConfigs.WRITE_PARTITION_COLUMNS_TO_PARQUET().fromMetaData(metadata).forall(each -> (Boolean) each);
    Set<ExprId> ofPartitions = new HashSet<>();
    for (Attribute each : QuickStatement.list(partitions)) ofPartitions.add(each.exprId());
    List<Attribute> data = new ArrayList<>();
    for (Attribute each : QuickStatement.list(output)) if (!ofPartitions.contains(each.exprId())) data.add(each);
    if (hasPartitions) data.addAll(QuickStatement.list(partitions));
    var ofVersion = TableParquetVersionOption.getWriterOptions(session, QuickStatement.none(), metadata.configuration());
    Map<String, String> given = new HashMap<>(QuickStatement.map(ofVersion));
    given.put(DeltaOptions.WRITE_PARTITION_COLUMNS(), String.valueOf(hasPartitions));
    scala.collection.immutable.Map<String, String> options = PythonUtils.toScalaMap(given);
    DataSourceUtilsShims.mergeWriteOptionsIntoHadoopConf(options, job.getConfiguration());
    FileFormat format = txn.deltaLog().fileFormat(txn.protocol(), metadata);
    OutputWriterFactory factory = format.prepareWrite(session, job, options, DataTypeUtils.fromAttributes(QuickStatement.seq(data)));
    String uuid = UUID.randomUUID().toString();
    job.getConfiguration().set("spark.sql.sources.writeJobUUID", uuid);
    return new WriteJobDescription(
        uuid, new SerializableConfiguration(job.getConfiguration()), factory, output, QuickStatement.seq(data), partitions, Option.empty(),
        txn.deltaLog().dataPath().toString(), PythonUtils.toScalaMap(Map.of()), session.sessionState().conf().maxRecordsPerFile(),
        session.sessionState().conf().sessionLocalTimeZone(), QuickStatement.seq(trackers));
  }

  /** What a task does; `DeltaFileFormatWriter.executeTask`. */
  private WriteTaskResult write(
      Job job, WriteJobDescription description, DelayedCommitProtocol committer, Seq<Attribute> partitions, Seq<Attribute> output) {
    JobID jobId = SparkHadoopWriterUtils.createJobID(SparkHadoopWriterUtils.createJobTrackerID(new Date()), 0);
    TaskAttemptID attempt = new TaskAttemptID(new TaskID(jobId, TaskType.MAP, 0), 0);
    Configuration conf = job.getConfiguration();
    TaskAttemptContext context = new TaskAttemptContextImpl(conf, attempt);
    if (partitions.size() > 0) {
      Map<String, DataType> types = new HashMap<>();
      for (Attribute each : QuickStatement.list(partitions)) types.put(each.name(), each.dataType());
      context = new DeltaFileFormatWriter.PartitionedTaskAttemptContextImpl(conf, attempt, PythonUtils.toScalaMap(types));
    }
    committer.setupTask(context);
    scala.collection.immutable.Map<String, SQLMetric> noMetrics = PythonUtils.toScalaMap(Map.of());
    FileFormatDataWriter writer =
        partitions.size() == 0
            ? new DeltaSingleDirectoryDataWriter(description, context, committer, noMetrics)
            : new DeltaDynamicPartitionDataSingleWriter(description, context, committer, noMetrics);
    try {
      for (InternalRow row : sorted(output, partitions)) writer.write(row);
      return writer.commit();
    } catch (Exception failed) {
      writer.abort();
      throw failed;
    } finally {
      writer.close();
    }
  }

  /** The rows, those of a partition together. */
  private List<InternalRow> sorted(Seq<Attribute> output, Seq<Attribute> partitions) {
    if (partitions.size() == 0) return rows;
    Seq<Expression> ofKey = QuickStatement.seq(QuickStatement.list(partitions));
    InterpretedMutableProjection key = new InterpretedMutableProjection(ofKey, output);
    Map<InternalRow, List<InternalRow>> byPartition = new LinkedHashMap<>();
    for (InternalRow row : rows) byPartition.computeIfAbsent(key.apply(row).copy(), none -> new ArrayList<>()).add(row);
    List<InternalRow> sorted = new ArrayList<>();
    byPartition.values().forEach(sorted::addAll);
    return sorted;
  }

  /** Through JSON, because the fields of an action change with Delta's versions. */
  static AddFile withStatistics(AddFile file, String statistics) throws IOException {
    ObjectNode action = (ObjectNode) JSON.readTree(file.json());
    ((ObjectNode) action.get("add")).put("stats", statistics);
    return (AddFile) Action.fromJson(JSON.writeValueAsString(action));
  }

  private static AttributeReference fresh(String name, DataType type, org.apache.spark.sql.types.Metadata metadata) {
    return new AttributeReference(name, type, true, metadata, NamedExpression.newExprId(), QuickStatement.seq(List.of()));
  }
}
