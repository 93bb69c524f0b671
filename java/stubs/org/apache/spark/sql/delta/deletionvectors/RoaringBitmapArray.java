package org.apache.spark.sql.delta.deletionvectors;

import scala.Enumeration;

public class RoaringBitmapArray {
  public RoaringBitmapArray() {}
  public native void add(long a);
  public native long cardinality();
  public native boolean isEmpty();
  public native void or(RoaringBitmapArray a);
  public native long[] toArray();
  public native boolean contains(long a);
  public native byte[] serializeAsByteArray(Enumeration.Value a);
  public native void and(RoaringBitmapArray a);
  public native void andNot(RoaringBitmapArray a);
}
