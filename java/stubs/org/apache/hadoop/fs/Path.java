package org.apache.hadoop.fs;

public class Path {
  public Path(Path parent, String child) {}

  public Path(String path) {}

  public Path getParent() {
    return null;
  }

  public java.net.URI toUri() {
    return null;
  }

  public String getName() {
    return null;
  }
}
