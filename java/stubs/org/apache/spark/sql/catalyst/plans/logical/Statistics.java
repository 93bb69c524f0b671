package org.apache.spark.sql.catalyst.plans.logical;

import scala.math.BigInt;

public class Statistics {
  public native BigInt sizeInBytes();
}
