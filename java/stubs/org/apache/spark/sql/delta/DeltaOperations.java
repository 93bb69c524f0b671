package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.expressions.Expression;
import scala.Option;

public final class DeltaOperations {
  public abstract static class Operation {}

  public static class Update extends Operation {
    public Update(Option<Expression> predicate) {}
  }
}
