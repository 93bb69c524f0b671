package io.delta.storage;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

public class HDFSLogStore {
  public HDFSLogStore(Configuration conf) {}

  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {}
}
