package org.apache.spark.sql.delta.files;

import org.apache.spark.sql.delta.actions.AddFile;
import scala.collection.immutable.Seq;

public abstract class TahoeBatchFileIndex extends TahoeFileIndex {
  public native Seq<AddFile> addFiles();
}
