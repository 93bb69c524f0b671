package org.apache.spark.sql.execution;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import scala.collection.immutable.Seq;

public class LogicalRDD extends LogicalPlan {
  public native boolean isStreaming();
  public native Seq<Attribute> output();
  public native RDD<InternalRow> rdd();
}
