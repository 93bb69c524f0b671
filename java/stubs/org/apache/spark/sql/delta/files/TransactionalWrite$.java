package org.apache.spark.sql.delta.files;

import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.internal.SQLConf;

public class TransactionalWrite$ {
  public static final TransactionalWrite$ MODULE$ = null;
  public native boolean shouldOptimizeWrite(Metadata a, SQLConf b);

}
