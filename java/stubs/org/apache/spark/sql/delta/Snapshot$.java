package org.apache.spark.sql.delta;

import org.apache.spark.sql.SparkSession;

public final class Snapshot$ {
  public static final Snapshot$ MODULE$ = null;

  public boolean allFilesInCrcWritePathEnabled(SparkSession session, Snapshot snapshot) {
    throw new UnsupportedOperationException("stub");
  }
}
