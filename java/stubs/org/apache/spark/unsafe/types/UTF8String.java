package org.apache.spark.unsafe.types;

public class UTF8String {
  public static native UTF8String fromString(String a);

  public native int compareTo(UTF8String a);
}
