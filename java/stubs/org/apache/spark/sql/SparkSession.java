package org.apache.spark.sql;

import org.apache.spark.sql.internal.SessionState;

public abstract class SparkSession {
  public native SessionState sessionState();
}
