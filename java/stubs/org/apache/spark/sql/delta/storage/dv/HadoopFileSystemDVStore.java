package org.apache.spark.sql.delta.storage.dv;

import org.apache.hadoop.conf.Configuration;

public class HadoopFileSystemDVStore implements DeletionVectorStore {
  public HadoopFileSystemDVStore(Configuration a) {}
}
