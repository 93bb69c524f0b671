package io.github.lakegate.quick;

import io.github.lakegate.caches.KnownFile;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InterpretedMutableProjection;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.commands.DeleteCommand;
import org.apache.spark.sql.delta.commands.DeltaCommand;
import org.apache.spark.sql.delta.commands.UpdateCommand;
import org.apache.spark.sql.delta.commands.cdc.CDCReader;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;

/** A DELETE, or an UPDATE. */
final class RowChange extends Change {
  private final LogicalPlan target;
  private final LogicalRelation relation;
  private final Option<Expression> condition;
  private final Seq<Expression> updates; // the new values of all columns; null for a DELETE
  private final Predicate<OptimisticTransaction> writesVectors;

  private RowChange(
      SparkSession session, DeltaCommand command, DeltaLog log, Option<CatalogTable> table,
      scala.collection.immutable.Map<String, SQLMetric> metrics, LogicalPlan target, Option<Expression> condition,
      Seq<Expression> updates, Predicate<OptimisticTransaction> writesVectors) {
    super(session, command, log, table, QuickStatement.map(metrics));
    this.target = target;
    this.condition = condition;
    this.updates = updates;
    this.writesVectors = writesVectors;
    relation = relation(target);
    checkCondition();
    if (updates == null) return;
    for (Expression each : QuickStatement.list(updates)) require(each, QuickStatement.list(relation.output()), "a value that it assigns");
  }

  static RowChange of(SparkSession session, DeleteCommand delete) {
    return new RowChange(
        session, delete, delete.deltaLog(), delete.catalogTable(), delete.metrics(), delete.target(), delete.condition(), null,
        txn -> delete.shouldWritePersistentDeletionVectors(session, txn));
  }

  static RowChange of(SparkSession session, UpdateCommand update) {
    return new RowChange(
        session, update, update.tahoeFileIndex().deltaLog(), update.catalogTable(), update.metrics(), update.target(),
        update.condition(), update.updateExpressions(), txn -> update.shouldWritePersistentDeletionVectors(session, txn));
  }

  @Override
  DeltaOperations.Operation operation() {
    return updates == null ? new DeltaOperations.Delete(condition.toList()) : new DeltaOperations.Update(condition);
  }

  @Override
  LogicalPlan target() {
    return target;
  }

  @Override
  StructType schema() {
    return definition(relation);
  }

  @Override
  boolean commitsNothing() {
    return updates != null;
  }

  @Override
  List<FileRows.Found> matching(Collection<KnownFile> files) throws Exception {
    return new FileRows(session, log, relation, condition.get(), null).find(files);
  }

  @Override
  List<Action> actions(OptimisticTransaction txn, Supplier<Collection<KnownFile>> files) throws Exception {
    long began = System.nanoTime();
    DeltaLog.assertRemovable(txn.snapshot());
    boolean hasMarks = writesVectors.test(txn);
    boolean isFed = updates == null ? !hasMarks && CDCReader.isCDCEnabledOnTable(txn.metadata(), session) : UpdateCommand.shouldOutputCdc(txn);
    List<Attribute> columns = new ArrayList<>(QuickStatement.list(relation.output()));
    List<Attribute> wanted = updates == null && !isFed ? null : columns;
    List<FileRows.Found> found = new ArrayList<>(new FileRows(session, log, relation, condition.get(), wanted).find(files.get()));
    found.removeIf(each -> each.matched.isEmpty());
    if (updates != null || !hasMarks) Served.checkWrite(txn);
    if (!hasMarks) Rewrite.check(found);
    long scanned = System.nanoTime();
    List<Action> actions = new ArrayList<>();
    Marks marks = new Marks(txn);
    RowFiles writer = new RowFiles(session, txn, QuickStatement.seq(columns), isFed);
    Rewrite rewrite = new Rewrite(session, log, relation);
    if (hasMarks) marks.add(found, actions);
    else rewrite.add(found, writer, false, actions);
    long rows = found.stream().mapToLong(FileRows.Found::count).sum();
    set("numRemovedFiles", updates == null && hasMarks ? marks.removed : found.size());
    set("numDeletionVectorsAdded", marks.added);
    set("numDeletionVectorsRemoved", marks.dropped);
    set("numDeletionVectorsUpdated", marks.updated);
    set("numCopiedRows", rewrite.copied);
    set("numTouchedRows", rows + rewrite.copied);
    set(updates == null ? "numDeletedRows" : "numUpdatedRows", rows);
    set("scanTimeMs", (scanned - began) / 1_000_000);
    if (updates == null && hasMarks) return actions;
    write(writer, columns, found, actions);
    set("numRemovedBytes", rewrite.removedBytes + (updates == null ? 0 : writer.changeBytes)); // as stock Delta counts them
    set("rewriteTimeMs", (System.nanoTime() - scanned) / 1_000_000);
    return actions;
  }

  private void write(RowFiles writer, List<Attribute> columns, List<FileRows.Found> found, List<Action> actions) throws Exception {
    InterpretedMutableProjection values = updates == null ? null : new InterpretedMutableProjection(updates, QuickStatement.seq(columns));
    for (FileRows.Found each : found) {
      for (InternalRow before : each.rows) {
        if (values == null) writer.delete(before);
        else writer.update(before, values.apply(before).copy());
      }
    }
    List<AddFile> added = writer.end(actions);
    set("numAddedFiles", added.size());
    set("numAddedBytes", added.stream().mapToLong(AddFile::size).sum());
    set("numAddedChangeFiles", writer.changeFiles);
    set("changeFileBytes", writer.changeBytes);
  }

  private void checkCondition() {
    if (!condition.isDefined()) throw new QuickStatement.Declined("it changes all rows");
    Expression checked = condition.get();
    require(checked, QuickStatement.list(relation.output()), "its condition");
    Set<String> partitions = Set.of(((HadoopFsRelation) relation.relation()).partitionSchema().fieldNames());
    if (checked.references().size() == 0) throw new QuickStatement.Declined("it changes all rows, or none");
    if (QuickStatement.list(checked.references()).stream().allMatch(each -> partitions.contains(each.name()))) {
      throw new QuickStatement.Declined("it changes whole partitions");
    }
  }
}
