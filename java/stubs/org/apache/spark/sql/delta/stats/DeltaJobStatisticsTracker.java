package org.apache.spark.sql.delta.stats;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.datasources.WriteJobStatsTracker;
import org.apache.spark.sql.execution.datasources.WriteTaskStats;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public class DeltaJobStatisticsTracker implements WriteJobStatsTracker {
  public DeltaJobStatisticsTracker(Configuration a, Path b, Seq<Attribute> c, Expression d) {}
  public native Seq<Attribute> dataCols();
  public native Expression statsColExpr();
  public native void processStats(Seq<WriteTaskStats> a, long b);
  public native Map<String, String> recordedStats();
}
