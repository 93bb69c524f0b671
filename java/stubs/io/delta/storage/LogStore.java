package io.delta.storage;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

public abstract class LogStore {
  public LogStore(Configuration conf) {}

  public Configuration initHadoopConf() {
    return null;
  }

  public abstract CloseableIterator<String> read(Path path, Configuration conf) throws IOException;

  public abstract void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException;

  public abstract Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException;

  public abstract Path resolvePathOnPhysicalStorage(Path path, Configuration conf) throws IOException;

  public abstract Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException;
}
