package org.apache.spark.sql.delta.actions;

import scala.collection.immutable.Map;

public class Metadata {
  public String id() {
    throw new UnsupportedOperationException("stub");
  }

  public native Map<String, String> configuration();
}
