package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.unsafe.types.UTF8String;

public class XXH64 {
  public static native long hashUTF8String(UTF8String a, long b);
}
