package org.apache.spark.sql.delta;

import org.apache.spark.sql.types.StructField;

public class DeltaColumnMapping {
  public static native String getPhysicalName(StructField a);
}
