package scala.collection.mutable;

import scala.collection.Iterable;

public interface Set<A> extends Iterable<A> {
  <B> scala.collection.immutable.Set<B> toSet();
}
