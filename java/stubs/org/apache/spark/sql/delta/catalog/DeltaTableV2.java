package org.apache.spark.sql.delta.catalog;

import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaTimeTravelSpec;
import scala.Option;

public class DeltaTableV2 implements Table {
  public native Option<CatalogTable> catalogTable();
  public native DeltaLog deltaLog();
  public native Option<DeltaTimeTravelSpec> timeTravelOpt();
}
