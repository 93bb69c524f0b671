package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.types.DataType;
import scala.Function1;

public class Expression {
  public native boolean deterministic();
  public native boolean exists(Function1<Expression, Object> a);
  public native AttributeSet references();

  public native DataType dataType();
}
