package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataType;

public class Expression extends TreeNode<Expression> {
  public native boolean deterministic();
  public native AttributeSet references();

  public native DataType dataType();
}
