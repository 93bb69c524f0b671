package org.apache.spark.internal.io;

import java.util.Date;
import org.apache.hadoop.mapred.JobID;

public class SparkHadoopWriterUtils {
  public static native JobID createJobID(String a, int b);
  public static native String createJobTrackerID(Date a);
}
