package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import scala.collection.immutable.Seq;

public class AttributeReference extends Attribute implements Unevaluable {
  public AttributeReference(String a, DataType b, boolean c, Metadata d, ExprId e, Seq<String> f) {}
  public native DataType dataType();
  public native Metadata metadata();
  public native String name();
  public native boolean nullable();
}
