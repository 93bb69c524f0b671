package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.expressions.Expression;
import scala.Option;
import scala.collection.immutable.Seq;

public interface DeltaMergeIntoClause {
  Option<Expression> condition();
  Seq<DeltaMergeAction> resolvedActions();
}
