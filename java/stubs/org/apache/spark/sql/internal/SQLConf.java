package org.apache.spark.sql.internal;

import java.util.Map;

public class SQLConf {
  public native long maxRecordsPerFile();
  public native Map<String, String> settings();
  public native String sessionLocalTimeZone();
}
