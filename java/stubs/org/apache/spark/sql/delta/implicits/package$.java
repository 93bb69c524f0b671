package org.apache.spark.sql.delta.implicits;

import org.apache.spark.sql.Encoder;
import org.apache.spark.sql.delta.actions.AddFile;

public final class package$ {
  public static final package$ MODULE$ = null;

  public Encoder<AddFile> addFileEncoder() {
    throw new UnsupportedOperationException("stub");
  }
}
