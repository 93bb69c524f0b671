package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.InternalRow;

public class GenericInternalRow extends InternalRow {
  public GenericInternalRow(Object[] a) {}
}
