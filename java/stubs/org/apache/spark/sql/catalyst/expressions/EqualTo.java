package org.apache.spark.sql.catalyst.expressions;

public class EqualTo extends BinaryComparison {
  public native Expression left();
  public native Expression right();
}
