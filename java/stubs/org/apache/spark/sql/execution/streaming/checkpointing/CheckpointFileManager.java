package org.apache.spark.sql.execution.streaming.checkpointing;

import java.io.IOException;
import java.io.OutputStream;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;

public interface CheckpointFileManager {
  abstract class CancellableFSDataOutputStream extends FSDataOutputStream {
    public CancellableFSDataOutputStream(OutputStream out) {
      super(out);
    }

    public abstract void cancel();
  }

  CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible);

  FSDataInputStream open(Path path);

  FileStatus[] list(Path path, PathFilter filter);

  void mkdirs(Path path);

  boolean exists(Path path);

  void delete(Path path);

  boolean isLocal();

  Path createCheckpointDirectory();

  default void close() {}
}
