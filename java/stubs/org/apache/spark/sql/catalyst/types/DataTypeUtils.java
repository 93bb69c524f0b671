package org.apache.spark.sql.catalyst.types;

import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

public class DataTypeUtils {
  public static native StructType fromAttributes(Seq<Attribute> a);

  public static native boolean sameType(DataType a, DataType b);
}
