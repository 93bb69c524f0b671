package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.catalog.BucketSpec;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Map;

public class HadoopFsRelation extends BaseRelation {
  public HadoopFsRelation(
      FileIndex a, StructType b, StructType c, Option<BucketSpec> d, FileFormat e, Map<String, String> f, SparkSession g) {}

  public native StructType dataSchema();
  public native FileFormat fileFormat();
  public native Map<String, String> options();
  public native StructType partitionSchema();

  public native FileIndex location();
}
