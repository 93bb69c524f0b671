package org.apache.spark.sql.catalyst.analysis;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public final class EliminateSubqueryAliases$ {
  public static final EliminateSubqueryAliases$ MODULE$ = null;

  public native LogicalPlan apply(LogicalPlan a);
}
