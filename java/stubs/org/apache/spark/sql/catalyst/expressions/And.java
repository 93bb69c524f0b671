package org.apache.spark.sql.catalyst.expressions;

public class And extends Expression {
  public native Expression left();
  public native Expression right();

  public And(Expression a, Expression b) {}
}
