package org.apache.spark.sql.delta.commands;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOptions;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.SetTransaction;
import scala.Option;

public interface DeltaCommand {
  Option<SetTransaction> createSetTransaction(SparkSession a, DeltaLog b, Option<DeltaOptions> c);
  boolean hasBeenExecuted(OptimisticTransaction a, SparkSession b, Option<DeltaOptions> c);
}
