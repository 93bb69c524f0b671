package io.delta.storage;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

public abstract class HadoopFileSystemLogStore extends LogStore {
  public HadoopFileSystemLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public CloseableIterator<String> read(Path path, Configuration conf) throws IOException {
    return null;
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    return null;
  }

  @Override
  public Path resolvePathOnPhysicalStorage(Path path, Configuration conf) throws IOException {
    return null;
  }
}
