package org.apache.spark.sql.delta;

public class DeltaTimeTravelSpec {
}
