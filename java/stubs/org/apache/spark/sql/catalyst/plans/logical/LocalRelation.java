package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import scala.collection.immutable.Seq;

public class LocalRelation extends LogicalPlan {
  public static native LocalRelation fromExternalRows(Seq<Attribute> a, Seq<Row> b);
}
