package org.apache.spark.paths;

import org.apache.hadoop.fs.Path;

public class SparkPath {
  public static native SparkPath fromPath(Path a);
}
