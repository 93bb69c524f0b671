package org.apache.spark.sql.execution.arrow;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;

public final class ArrowConverters$ {
  public static final ArrowConverters$ MODULE$ = null;

  public native ArrowConverters.ArrowBatchWithSchemaIterator toBatchWithSchemaIterator(
      Iterator<InternalRow> a, StructType b, long c, long d, String e, boolean f, boolean g);
}
