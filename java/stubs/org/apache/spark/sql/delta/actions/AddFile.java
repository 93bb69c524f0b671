package org.apache.spark.sql.delta.actions;

public class AddFile implements Action {}
