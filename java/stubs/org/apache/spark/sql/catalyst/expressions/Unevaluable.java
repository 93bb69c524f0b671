package org.apache.spark.sql.catalyst.expressions;

public interface Unevaluable {
}
