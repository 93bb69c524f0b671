package org.apache.spark.sql.catalyst.optimizer;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public final class OptimizeIn$ {
  public static final OptimizeIn$ MODULE$ = null;

  public native LogicalPlan apply(LogicalPlan a);
}
