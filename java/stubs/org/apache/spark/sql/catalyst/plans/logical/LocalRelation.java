package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.connector.read.streaming.SparkDataStream;
import scala.Option;
import scala.collection.immutable.Seq;

public class LocalRelation extends LogicalPlan {
  public static native LocalRelation fromExternalRows(Seq<Attribute> a, Seq<Row> b);

  public LocalRelation(Seq<Attribute> a, Seq<InternalRow> b, boolean c, Option<SparkDataStream> d) {}
  public native Seq<InternalRow> data();
}
