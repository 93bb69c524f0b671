package io.delta.tables;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.collection.immutable.Seq;

public class DeltaMergeBuilder {
  public native Seq<Expression> tryResolveReferencesForExpressions(SparkSession a, Seq<Expression> b, Seq<LogicalPlan> c);
}
