package org.apache.spark.sql.types;

public class Metadata {
  public static native Metadata empty();

  public native boolean contains(String a);
  public native String getString(String a);
}
