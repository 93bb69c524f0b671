package org.apache.spark.sql.catalyst.expressions;

import scala.collection.immutable.Seq;

public abstract class BinaryComparison extends Expression {
  public native Seq<Expression> children();
  public native String symbol();
}
