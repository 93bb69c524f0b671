package org.apache.spark.sql.delta;

public class DeltaOptions {
  public static native String WRITE_PARTITION_COLUMNS();
}
