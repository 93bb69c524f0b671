package org.apache.spark.sql.delta;

import scala.Option;

public class DeltaConfigs {
  public static native DeltaConfig<Option<Object>> WRITE_PARTITION_COLUMNS_TO_PARQUET();
}
