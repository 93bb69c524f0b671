package io.github.lakegate.quick;

import io.github.lakegate.Parts;
import io.github.lakegate.caches.Caches;
import io.github.lakegate.caches.KnownFile;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases$;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.optimizer.OptimizeIn$;
import org.apache.spark.sql.catalyst.optimizer.PushDownPredicates$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.files.TahoeBatchFileIndex;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** Reads the few rows of Delta tables that a query needs in the calling thread, without a Spark job. */
public final class FewRows {
  private static final long BATCH_BYTES_MAX = 1L << 30;

  private final SparkSession session;
  private final long bytesMax;
  private final Set<ExprId> read = new HashSet<>(); // the columns that the query reads

  private FewRows(SparkSession session, long bytesMax) {
    this.session = session;
    this.bytesMax = bytesMax;
  }

  /**
   * A query with the same rows, whose tables are local data.
   *
   * @param keys local rows: the query is restricted to rows whose columns of the same names have one of these values, each column for
   *     itself; null: all rows
   * @param bytesMax the memory of the lists of files that are kept
   * @return null if Spark has to read them
   */
  public static Dataset<Row> of(SparkSession session, LogicalPlan query, LogicalPlan keys, long bytesMax) {
    try {
      return new FewRows(session, bytesMax).local(keys == null ? query : among(session, query, keys));
    } catch (Exception | LinkageError failed) {
      return null; // Spark repeats it, and reports the failure
    }
  }

  /** The rows of a query as a stream of Arrow in base64; null if only a Spark job computes them. */
  public static String arrow(SparkSession session, Dataset<Row> query) {
    if (!(query.queryExecution().optimizedPlan() instanceof LocalRelation rows)) return null;
    var batches =
        ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
            rows.data().iterator(), query.schema(), Integer.MAX_VALUE, BATCH_BYTES_MAX,
            session.sessionState().conf().sessionLocalTimeZone(), true, false);
    if (!batches.hasNext()) return Parts.of("");
    String said = Base64.getEncoder().encodeToString(batches.next());
    return batches.hasNext() ? null : Parts.of(said);
  }

  private static LogicalPlan among(SparkSession session, LogicalPlan query, LogicalPlan keys) {
    SourceRows wanted = SourceRows.of(session, keys, null);
    LogicalPlan restricted = query;
    for (int i = 0; i < wanted.columns.size(); i++) {
      Attribute key = wanted.columns.get(i);
      Set<Object> values = new HashSet<>();
      for (InternalRow row : wanted.rows) if (!row.isNullAt(i)) values.add(row.get(i, key.dataType()));
      for (Attribute column : QuickStatement.list(query.output())) {
        if (!column.name().equalsIgnoreCase(key.name())) continue;
        if (!Merge.isKey(column.dataType()) || !column.dataType().equals(key.dataType())) continue;
        restricted = new Filter(new InSet((Expression) column, CollectionConverters.asScala(values).toSet()), restricted);
      }
    }
    return restricted;
  }

  private Dataset<Row> local(LogicalPlan query) {
    LogicalPlan plan = EliminateSubqueryAliases$.MODULE$.apply(query);
    plan = OptimizeIn$.MODULE$.apply(ReplaceExpressions$.MODULE$.apply(PushDownPredicates$.MODULE$.apply(plan)));
    for (Attribute each : QuickStatement.list(plan.output())) read.add(each.exprId());
    plan.exists(
        node -> {
          for (Attribute each : QuickStatement.list(node.references())) read.add(each.exprId());
          return false;
        });
    return Dataset.ofRows(session, replaced(plan));
  }

  private LogicalPlan replaced(LogicalPlan plan) {
    if (plan instanceof Filter filter && isTable(filter.child())) return rows((LogicalRelation) filter.child(), filter.condition());
    if (isTable(plan)) return rows((LogicalRelation) plan, Literal.create(true, DataTypes.BooleanType));
    return plan.mapChildren(this::replaced);
  }

  private static boolean isTable(LogicalPlan plan) {
    return plan instanceof LogicalRelation relation
        && relation.relation() instanceof HadoopFsRelation files
        && files.location() instanceof TahoeFileIndex;
  }

  private LogicalPlan rows(LogicalRelation relation, Expression condition) {
    try {
      List<Attribute> columns = new ArrayList<>(QuickStatement.list(relation.output()));
      return new LocalRelation(QuickStatement.seq(columns), QuickStatement.seq(found(relation, condition)), false, Option.empty());
    } catch (RuntimeException unchanged) {
      throw unchanged;
    } catch (Exception failed) {
      throw new IllegalStateException(failed);
    }
  }

  private List<InternalRow> found(LogicalRelation relation, Expression condition) throws Exception {
    TahoeFileIndex index = (TahoeFileIndex) ((HadoopFsRelation) relation.relation()).location();
    List<AttributeReference> columns = QuickStatement.list(relation.output());
    Set<String> names = Set.of(Change.definition(relation).fieldNames());
    List<Attribute> wanted = new ArrayList<>();
    List<Integer> places = new ArrayList<>();
    for (int i = 0; i < columns.size(); i++) {
      if (!names.contains(columns.get(i).name())) throw new QuickStatement.Declined("it reads what is no column of the table");
      if (!read.contains(columns.get(i).exprId())) continue;
      wanted.add(columns.get(i));
      places.add(i);
    }
    Change.require(condition, columns, "a condition");
    List<InternalRow> rows = new ArrayList<>();
    for (FileRows.Found each : new FileRows(session, index.deltaLog(), relation, condition, wanted).find(files(index))) {
      for (InternalRow found : each.rows) {
        Object[] values = new Object[columns.size()];
        for (int i = 0; i < wanted.size(); i++) values[places.get(i)] = found.get(i, wanted.get(i).dataType());
        rows.add(new GenericInternalRow(values));
      }
    }
    return rows;
  }

  private Collection<KnownFile> files(TahoeFileIndex index) throws Exception {
    Served.check(index.protocol());
    if (index instanceof TahoeBatchFileIndex given) {
      List<KnownFile> files = new ArrayList<>();
      for (AddFile each : QuickStatement.list(given.addFiles())) files.add(new KnownFile(each));
      return files;
    }
    if (!(index instanceof TahoeLogFileIndex ofLog)) throw new QuickStatement.Declined("its files are not those of a version");
    Snapshot snapshot = ofLog.getSnapshot();
    Snapshot newest = QuickStatement.newest(index.deltaLog());
    Collection<KnownFile> files = Caches.files(newest.version() == snapshot.version() ? newest : snapshot, bytesMax);
    if (files == null) throw new QuickStatement.Declined("the list of its files is not certain");
    return files;
  }
}
