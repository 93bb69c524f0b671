package org.apache.spark.sql.catalyst.expressions;

public interface NamedExpression {
  static ExprId newExprId() {
    throw new UnsupportedOperationException("stub");
  }
}
