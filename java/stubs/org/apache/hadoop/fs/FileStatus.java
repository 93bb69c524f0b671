package org.apache.hadoop.fs;

public class FileStatus {
  public Path getPath() {
    return null;
  }

  public long getLen() {
    return 0;
  }

  public long getModificationTime() {
    return 0;
  }
}
