package org.apache.spark.sql.catalyst.expressions;

import scala.collection.Iterable;
import scala.collection.Iterator;

public class AttributeSet implements Iterable<Attribute> {
  public native Iterator<Attribute> iterator();
  public native boolean contains(NamedExpression a);
  public native int size();
  public native boolean subsetOf(AttributeSet a);
}
