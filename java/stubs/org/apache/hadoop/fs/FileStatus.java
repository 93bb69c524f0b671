package org.apache.hadoop.fs;

public class FileStatus {
  public FileStatus(long length, boolean isDirectory, int replication, long blockSize, long modifiedAt, Path path) {}

  public Path getPath() {
    return null;
  }

  public boolean isDirectory() {
    return false;
  }

  public long getLen() {
    return 0;
  }

  public long getModificationTime() {
    return 0;
  }
}
