package org.apache.spark.sql.delta;

import org.apache.spark.sql.delta.actions.Metadata;

public class DeltaConfig<T> {
  public native T fromMetaData(Metadata a);
}
