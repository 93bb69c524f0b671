package org.apache.spark.sql.delta.deletionvectors;

import scala.Enumeration;

public class RoaringBitmapArrayFormat {

  public static class Format extends Enumeration.Value {
  }
}
