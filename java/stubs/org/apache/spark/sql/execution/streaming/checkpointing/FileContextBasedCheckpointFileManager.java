package org.apache.spark.sql.execution.streaming.checkpointing;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;

public class FileContextBasedCheckpointFileManager implements CheckpointFileManager {
  public FileContextBasedCheckpointFileManager(Path path, Configuration conf) {}

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    return null;
  }

  @Override
  public FSDataInputStream open(Path path) {
    return null;
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return null;
  }

  @Override
  public void mkdirs(Path path) {}

  @Override
  public boolean exists(Path path) {
    return false;
  }

  @Override
  public void delete(Path path) {}

  @Override
  public boolean isLocal() {
    return false;
  }

  @Override
  public Path createCheckpointDirectory() {
    return null;
  }
}
