package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.catalyst.InternalRow;

public abstract class FileFormatDataWriter {
  public native void abort();
  public native void close();
  public native WriteTaskResult commit();
  public native void write(InternalRow a);
}
