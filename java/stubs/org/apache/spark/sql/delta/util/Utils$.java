package org.apache.spark.sql.delta.util;

import org.apache.spark.sql.delta.actions.Metadata;

public class Utils$ {
  public static final Utils$ MODULE$ = null;
  public native String getRandomPrefix(int a);
  public native int getRandomPrefixLength(Metadata a);

}
