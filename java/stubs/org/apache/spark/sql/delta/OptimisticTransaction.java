package org.apache.spark.sql.delta;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.constraints.Constraint;
import org.apache.spark.sql.delta.files.DelayedCommitProtocol;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import org.apache.spark.sql.delta.stats.DeltaJobStatisticsTracker;
import org.apache.spark.sql.delta.stats.StatisticsCollection;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.StructType;
import scala.Function0;
import scala.Option;
import scala.Tuple2;
import scala.Tuple4;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Set;
import scala.collection.mutable.ArrayBuffer;

public class OptimisticTransaction {
  public OptimisticTransaction(DeltaLog log, Option<CatalogTable> table, Snapshot snapshot) {}

  public Option<VersionChecksum> incrementallyDeriveChecksum(long version, CurrentTransactionInfo committed) {
    throw new UnsupportedOperationException("stub");
  }

  public boolean isCheckpointNeeded(long version, Snapshot after) {
    throw new UnsupportedOperationException("stub");
  }

  public void readWholeTable() {
    throw new UnsupportedOperationException("stub");
  }

  public DeltaLog deltaLog() {
    throw new UnsupportedOperationException("stub");
  }

  public String txnId() {
    throw new UnsupportedOperationException("stub");
  }

  public ArrayBuffer<PostCommitHook> postCommitHooks() {
    throw new UnsupportedOperationException("stub");
  }

  public long commit(Seq<Action> actions, DeltaOperations.Operation operation, Map<String, String> tags) {
    throw new UnsupportedOperationException("stub");
  }

  public Option<CommittedTransaction> getCommitted() {
    throw new UnsupportedOperationException("stub");
  }

  public native DelayedCommitProtocol getCommitter(Path a);
  public native Tuple2<Option<DeltaJobStatisticsTracker>, Option<StatisticsCollection>> getOptionalStatsTrackerAndStatsCollection(Seq<Attribute> a, Path b, StructType c, Dataset<Row> d);
  public native Seq<Attribute> getPartitioningColumns(StructType a, Seq<Attribute> b);
  public native Metadata metadata();
  public native Tuple4<QueryExecution, Seq<Attribute>, Seq<Constraint>, Set<String>> normalizeData(DeltaLog a, Option<DeltaOptions> b, Dataset<Row> c);
  public native Tuple2<Dataset<Row>, StructType> performCDCPartition(Dataset<?> a);
  public native Protocol protocol();
  public native void registerPostCommitHook(PostCommitHook a);
  public native void registerSQLMetrics(SparkSession a, Map<String, SQLMetric> b);
  public native Snapshot snapshot();
  public native SparkSession spark();
  public static native <T> T withActive(OptimisticTransaction a, boolean b, Function0<T> c);
}
