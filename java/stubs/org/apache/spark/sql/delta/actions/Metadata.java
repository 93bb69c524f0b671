package org.apache.spark.sql.delta.actions;

public class Metadata {
  public String id() {
    throw new UnsupportedOperationException("stub");
  }
}
