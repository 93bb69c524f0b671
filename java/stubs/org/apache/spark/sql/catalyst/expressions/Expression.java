package org.apache.spark.sql.catalyst.expressions;

import scala.Function1;

public class Expression {
  public native boolean deterministic();
  public native boolean exists(Function1<Expression, Object> a);
  public native AttributeSet references();
}
