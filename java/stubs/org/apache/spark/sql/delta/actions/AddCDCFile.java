package org.apache.spark.sql.delta.actions;

public class AddCDCFile implements Action {
  public native long size();
}
