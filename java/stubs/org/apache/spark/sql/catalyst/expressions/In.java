package org.apache.spark.sql.catalyst.expressions;

import scala.collection.immutable.Seq;

public class In extends Expression {
  public native Seq<Expression> list();
  public native Expression value();
}
