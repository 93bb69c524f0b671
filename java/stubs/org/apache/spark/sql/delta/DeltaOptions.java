package org.apache.spark.sql.delta;

import org.apache.spark.sql.internal.SQLConf;
import scala.collection.immutable.Map;

public class DeltaOptions {
  public static native String WRITE_PARTITION_COLUMNS();

  public DeltaOptions(Map<String, String> a, SQLConf b) {}
}
