package org.apache.spark.sql.delta;

import java.util.concurrent.locks.ReentrantLock;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.storage.LogStore;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.sources.BaseRelation;
import scala.Function1;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public class DeltaLog {
  public LogStore store() {
    throw new UnsupportedOperationException("stub");
  }

  public Path logPath() {
    throw new UnsupportedOperationException("stub");
  }

  public Configuration newDeltaHadoopConf() {
    throw new UnsupportedOperationException("stub");
  }

  public Function1<String, String> getCanonicalPathFunction(boolean isBroadcast) {
    throw new UnsupportedOperationException("stub");
  }

  public Snapshot update(boolean stalenessAcceptable, Option<Object> ifNotSince, Option<CatalogTable> table) {
    throw new UnsupportedOperationException("stub");
  }

  public Snapshot getSnapshotAt(
      long version, Option<CheckpointInstance> hint, Option<CatalogTable> table, boolean isWithinRetention) {
    throw new UnsupportedOperationException("stub");
  }

  public Option<VersionChecksum> readChecksum(long version, Option<FileStatus> file) {
    throw new UnsupportedOperationException("stub");
  }

  public void checkpoint(Snapshot snapshot, Option<CatalogTable> table) {
    throw new UnsupportedOperationException("stub");
  }

  public ReentrantLock snapshotLock() {
    throw new UnsupportedOperationException("stub");
  }

  public Snapshot unsafeVolatileSnapshot() {
    throw new UnsupportedOperationException("stub");
  }

  public Snapshot installSnapshot(Snapshot newest, long atMs) {
    throw new UnsupportedOperationException("stub");
  }

  public static native void assertRemovable(SnapshotDescriptor a);
  public native Path dataPath();
  public native FileFormat fileFormat(Protocol a, Metadata b);
  public native Map<String, String> options();

  public native BaseRelation createRelation(Seq<Expression> a, Option<Snapshot> b, Option<CatalogTable> c, boolean d);
  public static native DeltaLog forTable(SparkSession a, Path b);
}
