package org.apache.spark.sql.execution.datasources;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapreduce.Job;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public interface FileFormat {
  Function1<PartitionedFile, Iterator<InternalRow>> buildReaderWithPartitionValues(SparkSession a, StructType b, StructType c, StructType d, Seq<Filter> e, Map<String, String> f, Configuration g);
  OutputWriterFactory prepareWrite(SparkSession a, Job b, Map<String, String> c, StructType d);
}
