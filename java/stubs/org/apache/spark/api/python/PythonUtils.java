package org.apache.spark.api.python;

import java.util.List;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

public final class PythonUtils {
  public static <T> Seq<T> toSeq(List<T> values) {
    throw new UnsupportedOperationException("stub");
  }

  public static <K, V> Map<K, V> toScalaMap(java.util.Map<K, V> values) {
    throw new UnsupportedOperationException("stub");
  }
}
