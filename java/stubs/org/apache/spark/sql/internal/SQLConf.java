package org.apache.spark.sql.internal;

public class SQLConf {
  public native long maxRecordsPerFile();
  public native String sessionLocalTimeZone();
}
