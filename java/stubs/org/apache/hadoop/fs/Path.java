package org.apache.hadoop.fs;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;

public class Path {
  public Path(Path parent, String child) {}

  public Path(String path) {}

  public Path getParent() {
    return null;
  }

  public java.net.URI toUri() {
    return null;
  }

  public FileSystem getFileSystem(Configuration conf) throws IOException {
    return null;
  }

  public String getName() {
    return null;
  }
}
