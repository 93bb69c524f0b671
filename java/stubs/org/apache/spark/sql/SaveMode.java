package org.apache.spark.sql;

public class SaveMode {
  public static final SaveMode Append = null;
}
