package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.util.SerializableConfiguration;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public class WriteJobDescription {
  public WriteJobDescription(String a, SerializableConfiguration b, OutputWriterFactory c, Seq<Attribute> d, Seq<Attribute> e, Seq<Attribute> f, Option<WriterBucketSpec> g, String h, Map<Map<String, String>, String> i, long j, String k, Seq<WriteJobStatsTracker> l) {}
}
