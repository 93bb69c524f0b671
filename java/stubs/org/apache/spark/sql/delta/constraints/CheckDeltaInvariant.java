package org.apache.spark.sql.delta.constraints;

import org.apache.spark.sql.catalyst.expressions.Expression;
import scala.Enumeration;

public class CheckDeltaInvariant extends Expression {
  public native boolean containsPattern(Enumeration.Value a);
  public native boolean deterministic();
}
