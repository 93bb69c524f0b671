package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import scala.collection.immutable.Seq;

public abstract class LogicalPlan extends TreeNode<LogicalPlan> {
  public native Seq<Attribute> output();

  public native AttributeSet references();

  public native Seq<LogicalPlan> collectLeaves();
  public native Statistics stats();
}
