package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.internal.SQLConf;

public class DeltaViewHelper {
  public static native LogicalPlan stripTempViewForMerge(LogicalPlan a, SQLConf b);
}
