package org.apache.spark.sql.internal;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.QueryExecution;
import scala.Enumeration;
import scala.collection.immutable.Map;

public class SessionState {
  public native SQLConf conf();
  public native QueryExecution executePlan(LogicalPlan a, Enumeration.Value b);
  public native Configuration newHadoopConfWithOptions(Map<String, String> a);
}
