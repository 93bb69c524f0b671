package org.apache.spark.sql.catalyst;

import org.apache.spark.sql.types.DataType;

public abstract class InternalRow {
  public native InternalRow copy();
  public native Object get(int a, DataType b);
  public native boolean getBoolean(int a);
  public native long getLong(int a);
  public native boolean isNullAt(int a);

  public native boolean anyNull();
}
