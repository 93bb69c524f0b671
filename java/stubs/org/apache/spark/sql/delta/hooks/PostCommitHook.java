package org.apache.spark.sql.delta.hooks;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.CommittedTransaction;

public interface PostCommitHook {
  void run(SparkSession session, CommittedTransaction committed);
}
