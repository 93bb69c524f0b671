package org.apache.spark.sql.delta.constraints;

public interface Constraint {
}
