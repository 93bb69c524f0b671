package org.apache.spark.sql.execution;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;

public class CacheManager {
  public native void recacheByPlan(SparkSession a, LogicalPlan b);

  public native boolean isEmpty();
}
