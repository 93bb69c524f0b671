package org.apache.spark.sql.delta.actions;

import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

public class InMemoryLogReplay {
  public InMemoryLogReplay(Option<Object> filesNotBefore, Option<Object> transactionsNotBefore) {}

  public void append(long version, Iterator<Action> actions) {
    throw new UnsupportedOperationException("stub");
  }

  public Seq<AddFile> allFiles() {
    throw new UnsupportedOperationException("stub");
  }

  public native Iterator<Action> checkpoint();
}
