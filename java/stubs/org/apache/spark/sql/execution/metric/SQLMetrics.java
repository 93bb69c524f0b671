package org.apache.spark.sql.execution.metric;

import org.apache.spark.SparkContext;

public class SQLMetrics {
  public static native SQLMetric createMetric(SparkContext a, String b);
}
