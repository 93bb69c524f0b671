package scala.collection.immutable;

import scala.collection.Iterator;

public interface Seq<A> {
  Iterator<A> iterator();

  int size();
}
