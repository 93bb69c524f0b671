package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.InternalRow;

public class UnsafeRow extends InternalRow {
  public native int getSizeInBytes();
}
