package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.internal.SQLConf;

public class PreprocessTableMerge {
  public PreprocessTableMerge(SQLConf a) {}
  public native LogicalPlan apply(LogicalPlan a);
}
