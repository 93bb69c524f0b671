package org.apache.spark.sql.execution.datasources;

import scala.collection.immutable.Seq;

public class ExecutedWriteSummary {
  public native Seq<WriteTaskStats> stats();
}
