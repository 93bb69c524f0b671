package org.apache.spark.internal.io;

public abstract class FileCommitProtocol {

  public static class TaskCommitMessage {
  }
}
