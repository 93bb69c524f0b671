package org.apache.spark;

import org.apache.spark.rdd.RDD;

public abstract class Dependency<T> {
  public native RDD<T> rdd();
}
