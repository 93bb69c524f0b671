package org.apache.spark.sql.delta;

import org.apache.spark.sql.delta.actions.AddFile;
import scala.Option;
import scala.collection.immutable.Seq;

public class VersionChecksum {
  public Option<Seq<AddFile>> allFiles() {
    throw new UnsupportedOperationException("stub");
  }

  public long tableSizeBytes() {
    throw new UnsupportedOperationException("stub");
  }

  public long numFiles() {
    throw new UnsupportedOperationException("stub");
  }
}
