package org.apache.spark.sql.delta.hooks;

public class AutoCompact$ implements PostCommitHook {
  public static final AutoCompact$ MODULE$ = null;

}
