package org.apache.spark.rdd;

import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

public abstract class RDD<T> {
  public native Seq<Dependency<?>> dependencies();
  public native Iterator<T> iterator(Partition a, TaskContext b);
  public native Partition[] partitions();
}
