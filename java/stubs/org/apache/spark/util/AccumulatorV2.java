package org.apache.spark.util;

import java.io.Serializable;

@SuppressWarnings("serial")
public abstract class AccumulatorV2<I, O> implements Serializable {
  public abstract boolean isZero();

  public abstract AccumulatorV2<I, O> copy();

  public abstract void reset();

  public abstract void add(I value);

  public abstract void merge(AccumulatorV2<I, O> other);

  public abstract O value();
}
