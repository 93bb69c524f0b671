package org.apache.hadoop.fs;

public class FileStatus {
  public Path getPath() {
    return null;
  }

  public long getModificationTime() {
    return 0;
  }
}
