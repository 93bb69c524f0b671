package org.apache.spark;

public class TaskContext$ {
  public static final TaskContext$ MODULE$ = null;
  public native TaskContextImpl empty();
  public native void setTaskContext(TaskContext a);
  public native void unset();
}
