package org.apache.spark.sql;

import java.util.List;

public abstract class Dataset<T> {
  public List<T> collectAsList() {
    throw new UnsupportedOperationException("stub");
  }
}
