package org.apache.hadoop.fs;

import java.io.FileNotFoundException;
import java.io.IOException;

public abstract class FileSystem {
  public FileStatus[] listStatus(Path path) throws FileNotFoundException, IOException {
    return null;
  }

  public FSDataOutputStream create(Path path, boolean overwrite) throws IOException {
    return null;
  }

  public boolean exists(Path path) throws IOException {
    return false;
  }

  public FSDataInputStream open(Path path) throws IOException {
    return null;
  }
}
