package org.apache.spark.sql.delta.actions;

public interface FileAction extends Action {
  String path();
}
