package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeInto;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.internal.SQLConf;
import scala.Function2;
import scala.collection.immutable.Seq;

public class ResolveDeltaMergeInto$ {
  public static final ResolveDeltaMergeInto$ MODULE$ = null;
  public native DeltaMergeInto resolveReferencesAndSchema(DeltaMergeInto a, SQLConf b, Function2<Seq<Expression>, Seq<LogicalPlan>, Seq<Expression>> c);
}
