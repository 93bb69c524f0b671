package org.apache.spark.sql.delta.deletionvectors;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore;

public interface StoredBitmap {
  static StoredBitmap create(DeletionVectorDescriptor a, Path b) {
    throw new UnsupportedOperationException("stub");
  }
  RoaringBitmapArray load(DeletionVectorStore a);
}
