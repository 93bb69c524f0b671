package org.apache.spark.sql.execution;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public class QueryExecution {
  public native LogicalPlan analyzed();
  public native LogicalPlan optimizedPlan();

  public native SparkPlan executedPlan();
}
