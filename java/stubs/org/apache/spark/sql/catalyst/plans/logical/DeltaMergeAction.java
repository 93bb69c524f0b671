package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.expressions.Expression;

public class DeltaMergeAction extends Expression {
  public native Expression expr();
}
