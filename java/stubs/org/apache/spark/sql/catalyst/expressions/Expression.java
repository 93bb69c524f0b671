package org.apache.spark.sql.catalyst.expressions;

public class Expression {}
