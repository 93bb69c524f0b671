package org.apache.spark.sql.delta.constraints;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.actions.Metadata;
import scala.collection.immutable.Seq;

public class Constraints {
  public static native Seq<Constraint> getAll(Metadata a, SparkSession b);
}
