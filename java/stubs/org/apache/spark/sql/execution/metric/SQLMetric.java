package org.apache.spark.sql.execution.metric;

public class SQLMetric {
  public native void set(long a);
}
