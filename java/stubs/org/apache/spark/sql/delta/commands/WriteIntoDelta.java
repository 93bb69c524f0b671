package org.apache.spark.sql.delta.commands;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOptions;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public class WriteIntoDelta extends LogicalPlan implements DeltaCommand {
  public WriteIntoDelta(DeltaLog a, SaveMode b, DeltaOptions c, Seq<String> d, Map<String, String> e, Dataset<Row> f, Option<CatalogTable> g, Option<StructType> h, boolean i) {}
}
