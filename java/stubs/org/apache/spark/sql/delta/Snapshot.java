package org.apache.spark.sql.delta;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
import scala.Option;

public class Snapshot implements SnapshotDescriptor {
  public Snapshot(Path path, long version, LogSegment segment, DeltaLog log, Option<VersionChecksum> checksum) {}

  public Path path() {
    throw new UnsupportedOperationException("stub");
  }

  public long version() {
    throw new UnsupportedOperationException("stub");
  }

  public LogSegment logSegment() {
    throw new UnsupportedOperationException("stub");
  }

  public DeltaLog deltaLog() {
    throw new UnsupportedOperationException("stub");
  }

  public Option<VersionChecksum> checksumOpt() {
    throw new UnsupportedOperationException("stub");
  }

  public Metadata metadata() {
    throw new UnsupportedOperationException("stub");
  }

  public Protocol protocol() {
    throw new UnsupportedOperationException("stub");
  }

  public Dataset<AddFile> allFiles() {
    throw new UnsupportedOperationException("stub");
  }

  public long sizeInBytes() {
    throw new UnsupportedOperationException("stub");
  }

  public long numOfFiles() {
    throw new UnsupportedOperationException("stub");
  }

  public CheckpointProvider checkpointProvider() {
    throw new UnsupportedOperationException("stub");
  }

  public boolean stateReconstructionTriggered() {
    throw new UnsupportedOperationException("stub");
  }

  public boolean _computedStateTriggered() {
    throw new UnsupportedOperationException("stub");
  }

  public void uncache() {
    throw new UnsupportedOperationException("stub");
  }
}
