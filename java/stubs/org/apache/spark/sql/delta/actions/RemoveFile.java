package org.apache.spark.sql.delta.actions;

import scala.Option;

public class RemoveFile implements Action {

  public native Option<String> getDeletionVectorUniqueId();
  public native String path();
}
