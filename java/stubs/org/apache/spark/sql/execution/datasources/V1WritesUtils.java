package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import scala.collection.immutable.Seq;

public class V1WritesUtils {
  public static native Seq<NamedExpression> convertEmptyToNull(Seq<Attribute> a, Seq<Attribute> b);
}
