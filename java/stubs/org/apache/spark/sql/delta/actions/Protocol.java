package org.apache.spark.sql.delta.actions;

public class Protocol {
  public String json() {
    throw new UnsupportedOperationException("stub");
  }
}
