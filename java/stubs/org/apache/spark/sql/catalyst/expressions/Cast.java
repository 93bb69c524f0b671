package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;

public class Cast extends Expression {
  public native Object eval(InternalRow a);

  public native Expression child();
  public native DataType dataType();
}
