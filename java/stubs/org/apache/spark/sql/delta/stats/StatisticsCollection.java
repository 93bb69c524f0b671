package org.apache.spark.sql.delta.stats;

public interface StatisticsCollection {
}
