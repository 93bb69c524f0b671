package org.apache.spark.sql.delta.actions;

public class DeletionVectorDescriptor {
  public static native DeletionVectorDescriptor inlineInLog(byte[] a, long b);
}
