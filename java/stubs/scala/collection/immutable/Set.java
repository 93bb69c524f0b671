package scala.collection.immutable;

import scala.collection.Iterable;

public interface Set<A> extends Iterable<A> {
  int size();
}
