package org.apache.spark.sql;

public interface Row {
}
