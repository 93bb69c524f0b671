package org.apache.spark.sql.execution;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.trees.TreeNode;

public abstract class SparkPlan extends TreeNode {
  public native InternalRow[] executeTake(int a);
}
