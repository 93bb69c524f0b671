package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.sources.BaseRelation;

public class LogicalRelation$ {
  public static final LogicalRelation$ MODULE$ = null;
  public native LogicalRelation apply(BaseRelation a, boolean b);
}
