package org.apache.hadoop.mapreduce;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;

public class Job implements JobContext {
  public native Configuration getConfiguration();
  public static native Job getInstance(Configuration a) throws IOException;
  public native void setOutputKeyClass(Class<?> a) throws IllegalStateException;
  public native void setOutputValueClass(Class<?> a) throws IllegalStateException;
}
