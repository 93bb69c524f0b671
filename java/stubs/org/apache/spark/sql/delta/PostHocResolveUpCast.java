package org.apache.spark.sql.delta;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public class PostHocResolveUpCast {
  public PostHocResolveUpCast(SparkSession a) {}
  public native LogicalPlan apply(LogicalPlan a);
}
