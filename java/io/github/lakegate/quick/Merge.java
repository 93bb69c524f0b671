package io.github.lakegate.quick;

import io.delta.tables.DeltaMergeBuilder;
import io.github.lakegate.caches.KnownFile;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeAction;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeInto;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeIntoClause;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeIntoMatchedUpdateClause;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.DeltaViewHelper;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.PostHocResolveUpCast;
import org.apache.spark.sql.delta.PreprocessTableMerge;
import org.apache.spark.sql.delta.ResolveDeltaMergeInto$;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.commands.MergeIntoCommand;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArray;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** A MERGE of few source rows, whose condition equates columns with expressions of the source. */
final class Merge extends Change {
  /** Types whose values are equal in Spark if and only if the objects that represent them are. */
  private static final Set<DataType> KEYS =
      Set.of(
          DataTypes.BooleanType, DataTypes.ByteType, DataTypes.ShortType, DataTypes.IntegerType, DataTypes.LongType, DataTypes.StringType,
          DataTypes.DateType, DataTypes.TimestampType, DataTypes.TimestampNTZType);

  /** More pairs with equal keys are tested faster by Spark. */
  private static final int PAIRS_MAX = 1_000_000;

  /** A clause: its condition and, of an UPDATE or INSERT, the values of all columns; null: it has none. */
  private record Clause(InterpretedMutableProjection condition, InterpretedMutableProjection values) {
    boolean isFor(InternalRow row) {
      return condition == null || holds(condition, row);
    }
  }

  private final MergeIntoCommand merge;
  private final LogicalRelation relation;
  private final List<Attribute> ofTable;
  private final List<Expression> keys = new ArrayList<>(); // of the source
  private final Map<InternalRow, List<Integer>> byKey = new HashMap<>();
  private final List<Expression> ofKey = new ArrayList<>(); // of the table
  private final List<Expression> alone = new ArrayList<>(); // the parts of the condition that read the table alone
  private SourceRows source;
  private Expression candidates; // the condition on a row alone; null: no row can match

  Merge(SparkSession session, MergeIntoCommand merge) {
    super(session, merge, merge.targetFileIndex().deltaLog(), merge.catalogTable(), QuickStatement.map(merge.metrics()));
    this.merge = merge;
    Served.check(log.unsafeVolatileSnapshot().protocol());
    relation = relation(merge.target());
    ofTable = new ArrayList<>(QuickStatement.list(relation.output()));
    if (merge.notMatchedBySourceClauses().size() > 0) throw new QuickStatement.Declined("it changes rows that no row of its source matches");
    if (merge.canMergeSchema()) throw new QuickStatement.Declined("it may add columns");
    if (merge.notMatchedClauses().size() > 0) refuseIdentity();
    List<Attribute> ofSource = QuickStatement.list(merge.source().output());
    List<Attribute> pair = both(ofTable, ofSource);
    require(merge.condition(), pair, "its condition");
    for (DeltaMergeIntoClause each : QuickStatement.list(merge.matchedClauses())) require(each, pair);
    for (DeltaMergeIntoClause each : QuickStatement.list(merge.notMatchedClauses())) require(each, ofSource);

    List<Expression> parts = new ArrayList<>();
    Skipping.split(merge.condition(), parts);
    for (Expression part : parts) {
      if (reads(part, ofTable)) alone.add(part);
      else if (part instanceof EqualTo equal && !addKey(equal.left(), equal.right(), ofSource)) {
        addKey(equal.right(), equal.left(), ofSource);
      }
    }
    if (keys.isEmpty()) throw new QuickStatement.Declined("its condition does not equate a column with its source");
  }

  private boolean addKey(Expression ofRow, Expression ofPair, List<Attribute> ofSource) {
    if (!isKey(ofRow.dataType()) || !reads(ofRow, ofTable) || ofRow.references().size() == 0 || !reads(ofPair, ofSource)) return false;
    ofKey.add(ofRow);
    keys.add(ofPair);
    return true;
  }

  static boolean isKey(DataType type) {
    return KEYS.contains(type) || type instanceof DecimalType;
  }

  @Override
  void readSource() {
    if (source != null) return;
    source = SourceRows.of(session, merge.source(), log);
    InterpretedMutableProjection key = projected(keys, source.columns);
    List<Set<Object>> values = new ArrayList<>();
    for (int i = 0; i < keys.size(); i++) values.add(new HashSet<>());
    for (int number = 0; number < source.rows.size(); number++) {
      InternalRow made = key.apply(source.rows.get(number)).copy();
      if (made.anyNull()) continue;
      byKey.computeIfAbsent(made, none -> new ArrayList<>()).add(number);
      for (int i = 0; i < keys.size(); i++) values.get(i).add(made.get(i, keys.get(i).dataType()));
    }
    if (byKey.isEmpty()) return;
    for (int i = 0; i < keys.size(); i++) {
      alone.add(new InSet(ofKey.get(i), CollectionConverters.asScala(values.get(i)).toSet()));
    }
    candidates = alone.stream().reduce(And::new).get();
  }

  @Override
  DeltaOperations.Operation operation() {
    return new DeltaOperations.Merge(
        Option.apply(merge.condition()), Option.empty(), Option.empty(), Option.empty(), predicates(merge.matchedClauses()),
        predicates(merge.notMatchedClauses()), predicates(merge.notMatchedBySourceClauses()));
  }

  private static scala.collection.immutable.Seq<DeltaOperations.MergePredicate> predicates(
      scala.collection.immutable.Seq<? extends DeltaMergeIntoClause> clauses) {
    List<DeltaOperations.MergePredicate> predicates = new ArrayList<>();
    for (DeltaMergeIntoClause each : QuickStatement.list(clauses)) predicates.add(DeltaOperations.MergePredicate$.MODULE$.apply(each));
    return QuickStatement.seq(predicates);
  }

  @Override
  LogicalPlan target() {
    return merge.target();
  }

  @Override
  StructType schema() {
    return definition(relation);
  }

  /** Pairs of rows for which the condition holds. */
  private final class Pairs {
    private final JoinedRow joined = new JoinedRow();
    private final InterpretedMutableProjection key;
    private final InterpretedMutableProjection condition;
    private int tested;

    Pairs(List<Attribute> wanted) {
      key = new InterpretedMutableProjection(QuickStatement.seq(ofKey), QuickStatement.seq(wanted));
      condition = projected(List.of(merge.condition()), both(wanted, source.columns));
    }

    /** The numbers of the source rows that match a row. */
    List<Integer> of(InternalRow row) {
      List<Integer> matches = new ArrayList<>();
      for (int number : byKey.getOrDefault(key.apply(row), List.of())) {
        if (++tested > PAIRS_MAX) throw new QuickStatement.Declined("many rows have the same key");
        if (holds(condition, pair(row, number))) matches.add(number);
      }
      return matches;
    }

    InternalRow pair(InternalRow row, int number) {
      return joined.apply(row, source.rows.get(number));
    }
  }

  private List<FileRows.Found> found(Collection<KnownFile> files, List<Attribute> wanted) throws Exception {
    return candidates == null ? List.of() : new FileRows(session, log, relation, candidates, wanted).find(files);
  }

  @Override
  List<FileRows.Found> matching(Collection<KnownFile> files) throws Exception {
    List<Attribute> wanted = readBy(List.of(merge.condition()), ofTable);
    Pairs pairs = new Pairs(wanted);
    List<FileRows.Found> found = found(files, wanted);
    for (FileRows.Found each : found) {
      each.matched = new RoaringBitmapArray();
      for (int i = 0; i < each.rows.size(); i++) if (!pairs.of(each.rows.get(i)).isEmpty()) each.matched.add(each.numbers.get(i));
    }
    return found;
  }

  @Override
  List<Action> actions(OptimisticTransaction txn, Supplier<Collection<KnownFile>> files) throws Exception {
    long began = System.nanoTime();
    Served.checkWrite(txn);
    txn.readWholeTable(); // also a MERGE that only inserts rows is no blind append
    boolean hasFeed = merge.isCdcEnabled(txn);
    List<DeltaMergeIntoClause> clauses = new ArrayList<>(QuickStatement.list(merge.matchedClauses()));
    List<Attribute> wanted = wanted(clauses, hasFeed);
    List<FileRows.Found> found = found(files.get(), wanted);
    Pairs pairs = new Pairs(wanted);
    boolean[] isMatched = new boolean[source.rows.size()];
    List<Clause> matched = new ArrayList<>();
    for (DeltaMergeIntoClause each : clauses) matched.add(clause(each, both(wanted, source.columns)));
    List<InternalRow[]> changed = new ArrayList<>(); // each row before and after; after is null if the row is deleted
    Set<FileRows.Found> touched = new LinkedHashSet<>();
    for (FileRows.Found each : found) {
      each.matched = new RoaringBitmapArray();
      for (int i = 0; i < each.rows.size(); i++) {
        InternalRow row = each.rows.get(i);
        List<Integer> matches = pairs.of(row);
        for (int number : matches) isMatched[number] = true;
        if (matches.isEmpty() || merge.isInsertOnly()) continue;
        if (matches.size() > 1) throw new QuickStatement.Declined("several rows of its source match one row");
        touched.add(each);
        InternalRow pair = pairs.pair(row, matches.get(0));
        for (Clause clause : matched) {
          if (!clause.isFor(pair)) continue;
          each.matched.add(each.numbers.get(i));
          changed.add(new InternalRow[] {row, clause.values == null ? null : clause.values.apply(pair).copy()});
          break;
        }
      }
    }
    found = found.stream().filter(each -> !each.matched.isEmpty()).toList();
    boolean hasMarks = touched.isEmpty() || merge.shouldWritePersistentDeletionVectors(session, txn);
    // Without them stock Delta also writes a file again of which it changes no row, unless it knows the conditions of all clauses.
    List<FileRows.Found> replaced = hasMarks ? List.of() : merge.notMatchedClauses().size() == 0 ? found : List.copyOf(touched);
    if (!found.isEmpty() || !replaced.isEmpty()) DeltaLog.assertRemovable(txn.snapshot());
    Rewrite.check(replaced);
    long scanned = System.nanoTime();
    List<Action> actions = new ArrayList<>();
    Marks marks = new Marks(txn);
    if (hasMarks) marks.add(found, actions);
    RowFiles writer = new RowFiles(session, txn, QuickStatement.seq(ofTable), hasFeed && !touched.isEmpty());
    Rewrite rewrite = new Rewrite(session, log, relation);
    rewrite.add(replaced, writer, true, actions);
    write(writer, changed, isMatched, actions);
    set("numSourceRows", source.rows.size());
    set("operationNumSourceRows", source.rows.size());
    set("numTargetFilesRemoved", marks.removed + rewrite.removed);
    set("numTargetBytesRemoved", marks.removedBytes + rewrite.removedBytes);
    set("numTargetRowsCopied", rewrite.copied);
    set("numTargetDeletionVectorsAdded", marks.added);
    set("numTargetDeletionVectorsRemoved", marks.dropped);
    set("numTargetDeletionVectorsUpdated", marks.updated);
    set("scanTimeMs", (scanned - began) / 1_000_000);
    set("rewriteTimeMs", (System.nanoTime() - scanned) / 1_000_000);
    return actions;
  }

  private void write(RowFiles writer, List<InternalRow[]> changed, boolean[] isMatched, List<Action> actions) throws Exception {
    long updated = 0;
    for (InternalRow[] each : changed) {
      if (each[1] == null) writer.delete(each[0]);
      else {
        writer.update(each[0], each[1]);
        updated++;
      }
    }
    List<Clause> clauses = new ArrayList<>();
    for (DeltaMergeIntoClause each : QuickStatement.list(merge.notMatchedClauses())) clauses.add(clause(each, source.columns));
    long inserted = 0;
    for (int number = 0; number < isMatched.length; number++) {
      InternalRow row = source.rows.get(number);
      if (isMatched[number]) continue;
      for (Clause clause : clauses) {
        if (!clause.isFor(row)) continue;
        writer.insert(clause.values.apply(row).copy());
        inserted++;
        break;
      }
    }
    List<AddFile> added = writer.end(actions);
    set("numTargetRowsUpdated", updated);
    set("numTargetRowsMatchedUpdated", updated);
    set("numTargetRowsDeleted", changed.size() - updated);
    set("numTargetRowsMatchedDeleted", changed.size() - updated);
    set("numTargetRowsInserted", inserted);
    set("numTargetFilesAdded", added.size());
    set("numTargetBytesAdded", added.stream().mapToLong(AddFile::size).sum());
    set("numTargetChangeFilesAdded", writer.changeFiles);
    set("numTargetChangeFileBytes", writer.changeBytes);
  }

  /** The columns of the table's rows that are needed: all if a row is written again, or if the feed shows it. */
  private List<Attribute> wanted(List<DeltaMergeIntoClause> clauses, boolean hasFeed) {
    boolean isUpdate = clauses.stream().anyMatch(DeltaMergeIntoMatchedUpdateClause.class::isInstance);
    if (isUpdate || (hasFeed && !clauses.isEmpty())) return ofTable;
    List<Expression> read = new ArrayList<>(List.of(merge.condition()));
    for (DeltaMergeIntoClause each : clauses) if (each.condition().isDefined()) read.add(each.condition().get());
    return readBy(read, ofTable);
  }

  private static Clause clause(DeltaMergeIntoClause clause, List<Attribute> columns) {
    List<Expression> values = new ArrayList<>();
    for (DeltaMergeAction each : QuickStatement.list(clause.resolvedActions())) values.add(each.expr());
    return new Clause(
        clause.condition().isDefined() ? projected(List.of(clause.condition().get()), columns) : null,
        values.isEmpty() ? null : projected(values, columns));
  }

  private static void require(DeltaMergeIntoClause clause, List<Attribute> columns) {
    if (clause.condition().isDefined()) require(clause.condition().get(), columns, "the condition of a clause");
    for (DeltaMergeAction each : QuickStatement.list(clause.resolvedActions())) require(each.expr(), columns, "a value that it assigns");
  }

  private static InterpretedMutableProjection projected(List<Expression> expressions, List<Attribute> columns) {
    return new InterpretedMutableProjection(QuickStatement.seq(expressions), QuickStatement.seq(columns));
  }

  private static boolean holds(InterpretedMutableProjection condition, InternalRow row) {
    InternalRow said = condition.apply(row);
    return !said.isNullAt(0) && said.getBoolean(0);
  }

  private static List<Attribute> both(List<Attribute> one, List<Attribute> other) {
    List<Attribute> both = new ArrayList<>(one);
    both.addAll(other);
    return both;
  }

  /** The plan that a builder executes; source: `DeltaMergeBuilder.execute`. */
  static LogicalPlan plan(SparkSession session, DeltaMergeBuilder builder) throws ReflectiveOperationException {
    Method made = DeltaMergeBuilder.class.getDeclaredMethod("mergePlan");
    made.setAccessible(true);
    DeltaMergeInto merge =
        ResolveDeltaMergeInto$.MODULE$.resolveReferencesAndSchema(
            (DeltaMergeInto) made.invoke(builder), session.sessionState().conf(),
            (expressions, plans) -> builder.tryResolveReferencesForExpressions(session, expressions, plans));
    LogicalPlan target = DeltaViewHelper.stripTempViewForMerge(merge.target(), session.sessionState().conf());
    merge =
        new DeltaMergeInto(
            target, merge.source(), merge.condition(), merge.matchedClauses(), merge.notMatchedClauses(),
            merge.notMatchedBySourceClauses(), merge.withSchemaEvolution(), merge.finalSchema());
    LogicalPlan command = new PreprocessTableMerge(session.sessionState().conf()).apply(merge);
    return new PostHocResolveUpCast(session).apply(command);
  }
}
