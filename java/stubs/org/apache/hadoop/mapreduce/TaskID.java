package org.apache.hadoop.mapreduce;

public class TaskID {
  public TaskID(JobID a, TaskType b, int c) {}
}
