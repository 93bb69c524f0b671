package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.InternalRow;

public class Cast extends Expression {
  public native Object eval(InternalRow a);
}
