package org.apache.spark.sql.delta.commands;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public class UpdateCommand extends LogicalPlan implements DeltaCommand {
  public native Option<CatalogTable> catalogTable();
  public native Option<Expression> condition();
  public native Map<String, SQLMetric> metrics();
  public static native boolean shouldOutputCdc(OptimisticTransaction a);
  public native boolean shouldWritePersistentDeletionVectors(SparkSession a, OptimisticTransaction b);
  public native TahoeFileIndex tahoeFileIndex();
  public native LogicalPlan target();
  public native Seq<Expression> updateExpressions();
}
