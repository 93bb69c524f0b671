package org.apache.spark.sql.types;

public class StructField {
  public StructField(String a, DataType b, boolean c, Metadata d) {}
  public native DataType dataType();

  public native Metadata metadata();
  public native String name();
}
