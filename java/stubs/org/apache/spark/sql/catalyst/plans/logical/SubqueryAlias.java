package org.apache.spark.sql.catalyst.plans.logical;

public class SubqueryAlias extends LogicalPlan {
  public native LogicalPlan child();
}
