package org.apache.spark.sql.execution;

import scala.Enumeration;

public class CommandExecutionMode$ extends Enumeration {
  public static final CommandExecutionMode$ MODULE$ = null;
  public native Enumeration.Value SKIP();

}
