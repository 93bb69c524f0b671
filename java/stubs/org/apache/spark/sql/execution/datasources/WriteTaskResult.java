package org.apache.spark.sql.execution.datasources;

import org.apache.spark.internal.io.FileCommitProtocol;

public class WriteTaskResult {
  public native FileCommitProtocol.TaskCommitMessage commitMsg();
  public native ExecutedWriteSummary summary();
}
