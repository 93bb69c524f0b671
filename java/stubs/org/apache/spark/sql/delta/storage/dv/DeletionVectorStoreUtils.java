package org.apache.spark.sql.delta.storage.dv;

public interface DeletionVectorStoreUtils {

  public static interface Writer {
    void close();
  }
}
