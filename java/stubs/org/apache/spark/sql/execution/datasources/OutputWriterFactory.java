package org.apache.spark.sql.execution.datasources;

public abstract class OutputWriterFactory {
}
