package org.apache.hadoop.fs;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;

public abstract class FileSystem {
  public abstract URI getUri();

  public Configuration getConf() {
    return null;
  }

  public FSDataOutputStreamBuilder<?, ?> createFile(Path path) {
    return null;
  }

  public boolean delete(Path path, boolean recursive) throws IOException {
    return false;
  }

  public FileStatus[] listStatus(Path path) throws FileNotFoundException, IOException {
    return null;
  }

  public FileStatus[] globStatus(Path pattern) throws IOException {
    return null;
  }

  public RemoteIterator<LocatedFileStatus> listFiles(Path path, boolean recursive) throws FileNotFoundException, IOException {
    return null;
  }

  public Path makeQualified(Path path) {
    return null;
  }

  public FSDataOutputStream create(Path path, boolean overwrite) throws IOException {
    return null;
  }

  public FileStatus getFileStatus(Path path) throws IOException {
    return null;
  }

  public boolean exists(Path path) throws IOException {
    return false;
  }

  public FSDataInputStream open(Path path) throws IOException {
    return null;
  }
}
