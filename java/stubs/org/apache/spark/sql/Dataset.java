package org.apache.spark.sql;

public abstract class Dataset<T> {}
