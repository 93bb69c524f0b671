package org.apache.spark.sql.delta.files;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;
import org.apache.spark.sql.types.DataType;
import scala.collection.immutable.Map;

public class DeltaFileFormatWriter {

  public static class PartitionedTaskAttemptContextImpl extends TaskAttemptContextImpl {
    public PartitionedTaskAttemptContextImpl(Configuration a, TaskAttemptID b, Map<String, DataType> c) {}
  }
}
