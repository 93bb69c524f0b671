package org.apache.hadoop.mapreduce.task;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;

public class TaskAttemptContextImpl implements TaskAttemptContext {
  public TaskAttemptContextImpl(Configuration a, TaskAttemptID b) {}
}
