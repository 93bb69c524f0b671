package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.InternalRow;
import scala.Function1;
import scala.collection.immutable.Seq;

public class InterpretedMutableProjection implements Function1 {
  public InterpretedMutableProjection(Seq<Expression> a, Seq<Attribute> b) {}
  public native InternalRow apply(InternalRow a);
}
