package org.apache.spark.sql.delta;

import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.types.StructType;

public abstract class DeltaParquetFileFormatBase implements FileFormat {
  public native StructType referenceSchema();
}
