package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import scala.Option;

public class DeltaLog {
  public OptimisticTransaction startTransaction(Option<CatalogTable> table, Option<Snapshot> snapshot) {
    throw new UnsupportedOperationException("stub");
  }
}
