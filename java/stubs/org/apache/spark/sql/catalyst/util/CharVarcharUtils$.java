package org.apache.spark.sql.catalyst.util;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import scala.Option;

public class CharVarcharUtils$ {
  public static final CharVarcharUtils$ MODULE$ = null;
  public native Option<DataType> getRawType(Metadata a);
}
