package org.apache.spark.sql.delta.actions;

import org.apache.hadoop.fs.Path;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;

public class AddFile implements FileAction {
  @Override
  public String path() {
    throw new UnsupportedOperationException("stub");
  }

  public long size() {
    throw new UnsupportedOperationException("stub");
  }

  public native DeletionVectorDescriptor deletionVector();
  public native String json();
  public native long modificationTime();
  public native Option<Object> numPhysicalRecords();
  public native Map<String, String> partitionValues();
  public native Tuple2<AddFile, RemoveFile> removeRows(DeletionVectorDescriptor a, boolean b, boolean c);
  public native RemoveFile removeWithTimestamp(long a, boolean b);
  public native Path toPath();

  public native String stats();

  public native Option<String> getDeletionVectorUniqueId();
}
