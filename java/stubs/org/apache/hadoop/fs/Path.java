package org.apache.hadoop.fs;

public class Path {
  public java.net.URI toUri() {
    return null;
  }
}
