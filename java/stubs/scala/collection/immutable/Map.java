package scala.collection.immutable;

import scala.Option;
import scala.Tuple2;
import scala.collection.Iterable;

public interface Map<K, V> extends Iterable<Tuple2<K, V>> {
  Option<V> get(K key);

  int size();
}
