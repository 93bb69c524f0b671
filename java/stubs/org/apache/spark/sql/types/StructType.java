package org.apache.spark.sql.types;

import scala.collection.immutable.Seq;

public class StructType extends DataType implements Seq<StructField> {
  public StructType() {}
  public native StructType add(String a, DataType b, boolean c);
  public native StructType add(StructField a);
  public native String[] fieldNames();
  public native StructField[] fields();

  public native int length();
}
