package org.apache.spark.sql.delta.actions;

import scala.Option;
import scala.collection.Iterator;

public class InMemoryLogReplay {
  public InMemoryLogReplay(Option<Object> filesNotBefore, Option<Object> transactionsNotBefore) {}

  public native void append(long version, Iterator<Action> actions);

  public native Iterator<Action> checkpoint();
}
