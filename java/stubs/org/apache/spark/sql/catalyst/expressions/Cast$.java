package org.apache.spark.sql.catalyst.expressions;

import org.apache.spark.sql.types.DataType;
import scala.Option;

public class Cast$ {
  public static final Cast$ MODULE$ = null;
  public native Cast apply(Expression a, DataType b, Option<String> c, boolean d);

}
