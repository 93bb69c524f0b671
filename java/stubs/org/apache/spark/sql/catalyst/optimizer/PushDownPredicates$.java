package org.apache.spark.sql.catalyst.optimizer;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public final class PushDownPredicates$ {
  public static final PushDownPredicates$ MODULE$ = null;

  public native LogicalPlan apply(LogicalPlan a);
}
