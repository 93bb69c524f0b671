package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.expressions.Expression;
import scala.Option;
import scala.collection.immutable.Seq;

public final class DeltaOperations {
  public abstract static class Operation {}

  public static class Delete extends Operation {
    public Delete(Seq<Expression> predicate) {}
  }

  public static class Update extends Operation {
    public Update(Option<Expression> predicate) {}
  }
}
