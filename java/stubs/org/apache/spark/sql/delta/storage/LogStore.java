package org.apache.spark.sql.delta.storage;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

public interface LogStore {
  Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException;

  Seq<String> read(Path path, Configuration conf) throws IOException;
}
