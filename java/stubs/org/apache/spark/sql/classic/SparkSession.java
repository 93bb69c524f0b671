package org.apache.spark.sql.classic;

import org.apache.spark.SparkContext;
import org.apache.spark.sql.Encoder;
import org.apache.spark.sql.internal.SessionState;
import org.apache.spark.sql.internal.SharedState;
import scala.Option;
import scala.collection.immutable.Seq;

public class SparkSession extends org.apache.spark.sql.SparkSession {
  public static SparkSession active() {
    throw new UnsupportedOperationException("stub");
  }

  public <T> Dataset<T> createDataset(Seq<T> data, Encoder<T> encoder) {
    throw new UnsupportedOperationException("stub");
  }

  public static Option<SparkSession> getActiveSession() {
    throw new UnsupportedOperationException("stub");
  }

  public static void setActiveSession(org.apache.spark.sql.SparkSession session) {
    throw new UnsupportedOperationException("stub");
  }

  public static void clearActiveSession() {
    throw new UnsupportedOperationException("stub");
  }

  public native String sessionUUID();
  public native SessionState sessionState();
  public native SharedState sharedState();

  public native SparkContext sparkContext();
}
