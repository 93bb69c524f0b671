package org.apache.spark.sql.delta.files;

import org.apache.spark.sql.delta.Snapshot;

public abstract class TahoeLogFileIndex extends TahoeFileIndex {
  public native Snapshot getSnapshot();
}
