package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;

public abstract class Attribute extends Expression implements NamedExpression {
  public native DataType dataType();
  public native ExprId exprId();
  public native Metadata metadata();
  public native String name();
}
