package org.apache.spark.sql.catalyst.trees;

import scala.Function1;

public abstract class TreeNode<BaseType extends TreeNode<BaseType>> implements Cloneable {
  @Override
  public native BaseType clone();

  public native boolean exists(Function1<BaseType, Object> a);

  public native BaseType mapChildren(Function1<BaseType, BaseType> a);
}
