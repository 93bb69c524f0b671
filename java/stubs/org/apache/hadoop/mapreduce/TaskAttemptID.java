package org.apache.hadoop.mapreduce;

public class TaskAttemptID {
  public TaskAttemptID(TaskID a, int b) {}
}
