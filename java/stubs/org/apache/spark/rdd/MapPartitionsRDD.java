package org.apache.spark.rdd;

public class MapPartitionsRDD<U, T> extends RDD<U> {
}
