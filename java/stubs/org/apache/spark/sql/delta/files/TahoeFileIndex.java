package org.apache.spark.sql.delta.files;

import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.SnapshotDescriptor;

public abstract class TahoeFileIndex implements SnapshotDescriptor {
  public native DeltaLog deltaLog();
}
