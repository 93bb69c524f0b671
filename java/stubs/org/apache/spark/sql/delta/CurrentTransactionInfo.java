package org.apache.spark.sql.delta;

public class CurrentTransactionInfo {}
