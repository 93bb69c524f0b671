package org.apache.spark.sql.delta.deletionvectors;

import scala.Enumeration;

public class RoaringBitmapArrayFormat$ extends Enumeration {
  public static final RoaringBitmapArrayFormat$ MODULE$ = null;
  public native RoaringBitmapArrayFormat.Format Portable();

}
