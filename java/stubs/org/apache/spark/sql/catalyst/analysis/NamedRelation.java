package org.apache.spark.sql.catalyst.analysis;

public interface NamedRelation {
}
