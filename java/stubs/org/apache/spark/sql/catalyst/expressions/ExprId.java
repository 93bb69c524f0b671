package org.apache.spark.sql.catalyst.expressions;

public class ExprId {
  public native boolean equals(Object a);
}
