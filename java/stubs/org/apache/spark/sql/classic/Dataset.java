package org.apache.spark.sql.classic;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.types.StructType;

public class Dataset<T> extends org.apache.spark.sql.Dataset<T> {
  public static native Dataset<Row> ofRows(SparkSession a, LogicalPlan b);

  public native QueryExecution queryExecution();
  public native StructType schema();
}
