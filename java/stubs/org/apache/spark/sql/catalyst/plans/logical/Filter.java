package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.expressions.Expression;

public class Filter extends LogicalPlan {
  public Filter(Expression a, LogicalPlan b) {}

  public native LogicalPlan child();
  public native Expression condition();
}
