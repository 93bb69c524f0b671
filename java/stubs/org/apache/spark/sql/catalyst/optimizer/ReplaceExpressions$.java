package org.apache.spark.sql.catalyst.optimizer;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public final class ReplaceExpressions$ {
  public static final ReplaceExpressions$ MODULE$ = null;

  public native LogicalPlan apply(LogicalPlan a);
}
