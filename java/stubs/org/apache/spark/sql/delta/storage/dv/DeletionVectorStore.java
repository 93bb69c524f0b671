package org.apache.spark.sql.delta.storage.dv;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.delta.util.PathWithFileSystem;

public interface DeletionVectorStore {
  PathWithFileSystem pathWithFileSystem(Path a);
}
