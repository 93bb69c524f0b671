package org.apache.spark.sql.delta.actions;

import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map;

public class Metadata {
  public String id() {
    throw new UnsupportedOperationException("stub");
  }

  public native Map<String, String> configuration();

  public native StructType schema();
}
