package org.apache.spark.sql.delta;

import org.apache.hadoop.fs.FileStatus;
import scala.collection.immutable.Seq;

public class LogSegment {
  public Seq<FileStatus> deltas() {
    throw new UnsupportedOperationException("stub");
  }

  public long lastCommitFileModificationTimestamp() {
    throw new UnsupportedOperationException("stub");
  }
}
