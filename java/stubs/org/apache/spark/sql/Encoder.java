package org.apache.spark.sql;

public interface Encoder<T> {}
