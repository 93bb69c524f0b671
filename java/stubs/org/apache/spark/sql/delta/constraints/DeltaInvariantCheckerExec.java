package org.apache.spark.sql.delta.constraints;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import scala.collection.immutable.Seq;

public class DeltaInvariantCheckerExec {
  public static native Seq<CheckDeltaInvariant> buildInvariantChecks(Seq<Attribute> a, Seq<Constraint> b, SparkSession c);
}
