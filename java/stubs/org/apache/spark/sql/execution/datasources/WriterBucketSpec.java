package org.apache.spark.sql.execution.datasources;

public class WriterBucketSpec {
}
