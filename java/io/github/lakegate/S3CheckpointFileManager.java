package io.github.lakegate;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Checkpoints on S3 by conditional puts: of two runs of one query, only one plans a batch. Spark's own way writes a temporary file and
 * renames it, which on S3 is a copy and a deletion: both runs can plan the batch, each with other offsets. On other file
 * systems it is Spark's own way.
 */
public final class S3CheckpointFileManager implements CheckpointFileManager {
  private final CheckpointFileManager usual;
  private final FileSystem files; // null: not on S3

  public S3CheckpointFileManager(Path path, Configuration conf) throws IOException {
    boolean isS3 = "s3a".equals(path.toUri().getScheme());
    files = isS3 ? path.getFileSystem(conf) : null;
    usual = isS3 ? new FileSystemBasedCheckpointFileManager(path, conf) : new FileContextBasedCheckpointFileManager(path, conf);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    if (files == null) return usual.createAtomic(path, overwriteIfPossible);
    try {
      return overwriteIfPossible ? new Overwriting(files.create(path, true)) : new Planning(path, new ByteArrayOutputStream());
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  /** A file that must not exist yet: offsets and commits of a batch, a query's id. It is small, so it is buffered until it is written. */
  private final class Planning extends CancellableFSDataOutputStream {
    private final Path path;
    private final ByteArrayOutputStream content;
    private boolean isEnded;

    Planning(Path path, ByteArrayOutputStream content) {
      super(content);
      this.path = path;
      this.content = content;
    }

    @Override
    public void close() throws IOException {
      if (isEnded) return;
      isEnded = true;
      flush();
      ConditionalPutLogStore.prove(files, path);
      if (!ConditionalPutLogStore.put(files, path, content.toByteArray())) throw new FileAlreadyExistsException("lakegate: " + path + " is there already: another run of this query wrote it; nothing was written");
    }

    @Override
    public void cancel() {
      isEnded = true;
    }
  }

  /** A file that may replace an existing one, for example of state: visible when it is closed, and not before. */
  private static final class Overwriting extends CancellableFSDataOutputStream {
    private final FSDataOutputStream put;
    private boolean isEnded;

    Overwriting(FSDataOutputStream put) {
      super(put);
      this.put = put;
    }

    @Override
    public void close() throws IOException {
      if (isEnded) return;
      isEnded = true;
      super.close();
    }

    @Override
    public void cancel() {
      if (isEnded) return;
      isEnded = true;
      put.abort();
    }
  }

  @Override
  public FSDataInputStream open(Path path) {
    return usual.open(path);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return usual.list(path, filter);
  }

  @Override
  public void mkdirs(Path path) {
    usual.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    return usual.exists(path);
  }

  @Override
  public void delete(Path path) {
    usual.delete(path);
  }

  @Override
  public boolean isLocal() {
    return usual.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return usual.createCheckpointDirectory();
  }

  @Override
  public void close() {
    usual.close();
  }
}
