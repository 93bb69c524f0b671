package org.apache.hadoop.mapreduce;

public class TaskType {
  public static final TaskType MAP = null;
}
