package scala.collection.immutable;

import scala.collection.Iterable;

public interface Seq<A> extends Iterable<A> {
  int size();
}
