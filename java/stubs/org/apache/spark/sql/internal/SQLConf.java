package org.apache.spark.sql.internal;

import java.util.Map;
import scala.Function0;

public class SQLConf implements Cloneable {
  @Override
  public native SQLConf clone();
  public native long maxRecordsPerFile();
  public native String sessionLocalTimeZone();
  public native void setConfString(String a, String b);
  public native Map<String, String> settings();
  public static native <T> T withExistingConf(SQLConf a, Function0<T> b);
}
