package org.apache.spark.sql.execution;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public class LogicalRDD extends LogicalPlan {
  public native boolean isStreaming();
}
