package org.apache.spark.sql.internal;

import org.apache.spark.sql.execution.CacheManager;

public class SharedState {
  public native CacheManager cacheManager();
}
