package org.apache.spark.sql.connector.catalog;

public interface Table {
}
