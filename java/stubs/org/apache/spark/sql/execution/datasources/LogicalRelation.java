package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

public class LogicalRelation extends LogicalPlan {
  public native Seq<AttributeReference> output();
  public native AttributeSet outputSet();
  public native BaseRelation relation();

  public native StructType schema();
}
