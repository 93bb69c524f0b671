package org.apache.spark.sql.delta.files;

import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.sql.execution.datasources.FileFormatDataWriter;
import org.apache.spark.sql.execution.datasources.WriteJobDescription;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.collection.immutable.Map;

public class DeltaDynamicPartitionDataSingleWriter extends FileFormatDataWriter {
  public DeltaDynamicPartitionDataSingleWriter(WriteJobDescription a, TaskAttemptContext b, FileCommitProtocol c, Map<String, SQLMetric> d) {}
}
