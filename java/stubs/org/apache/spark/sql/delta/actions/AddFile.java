package org.apache.spark.sql.delta.actions;

public class AddFile implements FileAction {
  @Override
  public String path() {
    throw new UnsupportedOperationException("stub");
  }

  public long size() {
    throw new UnsupportedOperationException("stub");
  }
}
