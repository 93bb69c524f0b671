package org.apache.spark.sql.catalyst.trees;

import scala.Enumeration;

public class TreePattern {
  public static native Enumeration.Value CURRENT_LIKE();
}
