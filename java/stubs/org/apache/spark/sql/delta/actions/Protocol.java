package org.apache.spark.sql.delta.actions;

import scala.collection.immutable.Set;

public class Protocol {
  public String json() {
    throw new UnsupportedOperationException("stub");
  }

  public native Set<String> readerAndWriterFeatureNames();
}
