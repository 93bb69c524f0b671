package org.apache.spark.util;

import org.apache.hadoop.conf.Configuration;

public class SerializableConfiguration {
  public SerializableConfiguration(Configuration a) {}
}
