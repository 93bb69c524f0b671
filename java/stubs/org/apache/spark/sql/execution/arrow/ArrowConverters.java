package org.apache.spark.sql.execution.arrow;

import scala.collection.Iterator;

public final class ArrowConverters {
  public abstract static class ArrowBatchWithSchemaIterator implements Iterator<byte[]> {
    @Override
    public native byte[] next();
  }
}
