package org.apache.hadoop.mapreduce.lib.output;

import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;

public abstract class FileOutputFormat<K, V> {
  public static native void setOutputPath(Job a, Path b);
}
