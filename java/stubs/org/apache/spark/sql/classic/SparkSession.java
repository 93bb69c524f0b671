package org.apache.spark.sql.classic;

import scala.Option;

public class SparkSession extends org.apache.spark.sql.SparkSession {
  public static Option<SparkSession> getActiveSession() {
    throw new UnsupportedOperationException("stub");
  }

  public static void setActiveSession(org.apache.spark.sql.SparkSession session) {
    throw new UnsupportedOperationException("stub");
  }

  public static void clearActiveSession() {
    throw new UnsupportedOperationException("stub");
  }
}
