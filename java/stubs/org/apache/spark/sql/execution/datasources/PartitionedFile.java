package org.apache.spark.sql.execution.datasources;

import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import scala.collection.immutable.Map;

public class PartitionedFile {
  public PartitionedFile(InternalRow a, SparkPath b, long c, long d, String[] e, long f, long g, Map<String, Object> h) {}
}
