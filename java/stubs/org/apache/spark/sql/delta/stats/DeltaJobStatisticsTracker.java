package org.apache.spark.sql.delta.stats;

import org.apache.spark.sql.execution.datasources.WriteJobStatsTracker;
import org.apache.spark.sql.execution.datasources.WriteTaskStats;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public class DeltaJobStatisticsTracker implements WriteJobStatsTracker {
  public native void processStats(Seq<WriteTaskStats> a, long b);
  public native Map<String, String> recordedStats();
}
