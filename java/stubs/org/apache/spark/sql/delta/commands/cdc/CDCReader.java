package org.apache.spark.sql.delta.commands.cdc;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.actions.Metadata;

public class CDCReader {
  public static native String CDC_TYPE_COLUMN_NAME();
  public static native boolean isCDCEnabledOnTable(Metadata a, SparkSession b);
}
