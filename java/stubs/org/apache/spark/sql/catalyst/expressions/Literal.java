package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.types.DataType;

public class Literal extends Expression {
  public static native Literal create(Object a, DataType b);

  public native Object value();
}
