package org.apache.spark.sql.connector.read.streaming;

public interface SparkDataStream {
}
