package io.github.lakegate;

import java.util.TreeSet;
import org.apache.spark.util.AccumulatorV2;

/** Names of fields, gathered from the tasks of a job. */
public final class FieldNames extends AccumulatorV2<String, String> {
  private static final long serialVersionUID = 1L;
  private static final int NAMES_MAX = 100; // for a source whose records all have different names
  private static final int LENGTH_MAX = 100;
  private final TreeSet<String> names = new TreeSet<>();

  @Override
  public synchronized boolean isZero() {
    return names.isEmpty();
  }

  @Override
  public synchronized FieldNames copy() {
    FieldNames copied = new FieldNames();
    copied.names.addAll(names);
    return copied;
  }

  @Override
  public synchronized void reset() {
    names.clear();
  }

  @Override
  public synchronized void add(String name) {
    if (names.size() < NAMES_MAX) names.add(name.length() > LENGTH_MAX ? name.substring(0, LENGTH_MAX) + "…" : name);
  }

  @Override
  public void merge(AccumulatorV2<String, String> other) {
    for (String name : ((FieldNames) other).copy().names) add(name);
  }

  /** One per line. */
  @Override
  public synchronized String value() {
    StringBuilder lines = new StringBuilder();
    for (String name : names) lines.append(name.replace('\n', ' ')).append('\n');
    return lines.toString();
  }
}
