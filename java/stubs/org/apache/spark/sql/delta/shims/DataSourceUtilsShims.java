package org.apache.spark.sql.delta.shims;

import org.apache.hadoop.conf.Configuration;
import scala.collection.immutable.Map;

public class DataSourceUtilsShims {
  public static native void mergeWriteOptionsIntoHadoopConf(Map<String, String> a, Configuration b);
}
