package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeIntoClause;
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

  public static class Merge extends Operation {
    public Merge(
        Option<Expression> predicate, Option<String> update, Option<String> delete, Option<String> insert, Seq<MergePredicate> matched,
        Seq<MergePredicate> notMatched, Seq<MergePredicate> notMatchedBySource) {}
  }

  public static class MergePredicate {}

  public static class MergePredicate$ {
    public static final MergePredicate$ MODULE$ = null;

    public native MergePredicate apply(DeltaMergeIntoClause a);
  }

  public static class Write extends Operation {
    public Write(
        SaveMode mode, Option<Seq<String>> partitionBy, Option<String> predicate, Option<String> userMetadata, Option<Object> isDynamic,
        Option<Object> canOverwriteSchema, Option<Object> canMergeSchema, Option<String> replaceOn, Option<String> replaceUsing) {}
  }
}
