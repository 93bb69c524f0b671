package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Map;

public class HadoopFsRelation extends BaseRelation {
  public native StructType dataSchema();
  public native FileFormat fileFormat();
  public native Map<String, String> options();
  public native StructType partitionSchema();

  public native FileIndex location();
}
