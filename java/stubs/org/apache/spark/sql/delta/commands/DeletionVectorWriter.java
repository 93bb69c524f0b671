package org.apache.spark.sql.delta.commands;

import java.util.UUID;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStoreUtils;
import org.apache.spark.sql.delta.util.PathWithFileSystem;
import scala.Tuple2;

public class DeletionVectorWriter {
  public static native Tuple2<DeletionVectorStoreUtils.Writer, UUID> createWriter(DeletionVectorStore a, PathWithFileSystem b, String c);
  public static native DeletionVectorDescriptor storeSerializedBitmap(DeletionVectorWriter.DeletionVectorMapperContext a, byte[] b, long c);

  public static class DeletionVectorMapperContext {
    public DeletionVectorMapperContext(DeletionVectorStore a, DeletionVectorStoreUtils.Writer b, Path c, UUID d, String e) {}
    public native DeletionVectorStoreUtils.Writer writer();
  }
}
