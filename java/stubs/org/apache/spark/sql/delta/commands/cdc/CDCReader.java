package org.apache.spark.sql.delta.commands.cdc;

public class CDCReader {
  public static native String CDC_TYPE_COLUMN_NAME();
}
