package org.apache.spark.rdd;

public class ParallelCollectionRDD<T> extends RDD<T> {
}
