package org.apache.spark.sql.delta.actions;

public class RemoveFile implements Action {
}
