package org.apache.spark.sql.classic;

public class Dataset<T> extends org.apache.spark.sql.Dataset<T> {}
