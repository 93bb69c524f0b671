package org.apache.spark.sql.delta.files;

import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.SnapshotDescriptor;
import org.apache.spark.sql.delta.actions.Protocol;

public abstract class TahoeFileIndex implements SnapshotDescriptor {
  public native DeltaLog deltaLog();
  public native Protocol protocol();
}
