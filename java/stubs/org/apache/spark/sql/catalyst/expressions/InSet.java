package org.apache.spark.sql.catalyst.expressions;

import scala.collection.immutable.Set;

public class InSet extends Expression {
  public native Expression child();
  public native Set<Object> hset();

  public InSet(Expression a, Set<Object> b) {}
}
