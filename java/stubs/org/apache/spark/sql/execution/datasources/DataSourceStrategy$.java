package org.apache.spark.sql.execution.datasources;

import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.sources.Filter;
import scala.Option;

public class DataSourceStrategy$ {
  public static final DataSourceStrategy$ MODULE$ = null;
  public native Option<Filter> translateFilter(Expression a, boolean b);

}
