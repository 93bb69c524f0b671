package org.apache.spark.sql.delta.util;

import org.apache.spark.sql.SparkSession;
import scala.collection.immutable.Map;

public class TableParquetVersionOption {
  public static native Map<String, String> getWriterOptions(SparkSession a, Map<String, String> b, Map<String, String> c);
}
