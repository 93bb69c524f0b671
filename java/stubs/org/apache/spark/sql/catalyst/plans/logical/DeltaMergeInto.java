package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;

public class DeltaMergeInto extends LogicalPlan {
  public DeltaMergeInto(LogicalPlan a, LogicalPlan b, Expression c, Seq<DeltaMergeIntoMatchedClause> d, Seq<DeltaMergeIntoNotMatchedClause> e, Seq<DeltaMergeIntoNotMatchedBySourceClause> f, boolean g, Option<StructType> h) {}
  public native Expression condition();
  public native Option<StructType> finalSchema();
  public native Seq<DeltaMergeIntoMatchedClause> matchedClauses();
  public native Seq<DeltaMergeIntoNotMatchedBySourceClause> notMatchedBySourceClauses();
  public native Seq<DeltaMergeIntoNotMatchedClause> notMatchedClauses();
  public native LogicalPlan source();
  public native LogicalPlan target();
  public native boolean withSchemaEvolution();
}
