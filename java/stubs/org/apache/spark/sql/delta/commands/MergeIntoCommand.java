package org.apache.spark.sql.delta.commands;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeIntoMatchedClause;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeIntoNotMatchedBySourceClause;
import org.apache.spark.sql.catalyst.plans.logical.DeltaMergeIntoNotMatchedClause;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.files.TahoeFileIndex;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public class MergeIntoCommand extends LogicalPlan implements DeltaCommand {
  public native boolean canMergeSchema();
  public native Option<CatalogTable> catalogTable();
  public native Expression condition();
  public native boolean isCdcEnabled(OptimisticTransaction a);
  public native boolean isInsertOnly();
  public native Seq<DeltaMergeIntoMatchedClause> matchedClauses();
  public native Map<String, SQLMetric> metrics();
  public native Seq<DeltaMergeIntoNotMatchedBySourceClause> notMatchedBySourceClauses();
  public native Seq<DeltaMergeIntoNotMatchedClause> notMatchedClauses();
  public native boolean shouldWritePersistentDeletionVectors(SparkSession a, OptimisticTransaction b);
  public native LogicalPlan source();
  public native LogicalPlan target();
  public native TahoeFileIndex targetFileIndex();
}
