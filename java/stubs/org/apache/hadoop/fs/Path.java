package org.apache.hadoop.fs;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;

public class Path {
  public Path(Path parent, String child) {}

  public Path(String path) {}

  public Path(URI path) {}

  public Path(Path parent, Path child) {}

  public Path getParent() {
    return null;
  }

  public URI toUri() {
    return null;
  }

  public FileSystem getFileSystem(Configuration conf) throws IOException {
    return null;
  }

  public String getName() {
    return null;
  }

  public native boolean isAbsolute();
  @Override
  public native String toString();

  public native boolean equals(Object a);
}
