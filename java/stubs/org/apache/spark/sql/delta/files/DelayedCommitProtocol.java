package org.apache.spark.sql.delta.files;

import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.sql.delta.actions.AddCDCFile;
import org.apache.spark.sql.delta.actions.AddFile;
import scala.collection.immutable.Seq;
import scala.collection.mutable.ArrayBuffer;

public class DelayedCommitProtocol extends FileCommitProtocol {
  public native ArrayBuffer<AddFile> addedStatuses();
  public native ArrayBuffer<AddCDCFile> changeFiles();
  public native void commitJob(JobContext a, Seq<FileCommitProtocol.TaskCommitMessage> b);
  public native void setupJob(JobContext a);
  public native void setupTask(TaskAttemptContext a);
}
