package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.expressions.Attribute;
import scala.collection.immutable.Seq;

public abstract class LogicalPlan {
  public native Seq<Attribute> output();
}
