package org.apache.hadoop.fs;

public class Path {
  public Path(Path parent, String child) {}

  public java.net.URI toUri() {
    return null;
  }

  public String getName() {
    return null;
  }
}
