package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.InternalRow;

public class JoinedRow extends InternalRow {
  public JoinedRow() {}
  public native JoinedRow apply(InternalRow a, InternalRow b);
}
