package scala.collection.mutable;

import scala.collection.Iterable;
import scala.collection.Iterator;

public class ArrayBuffer<A> implements Iterable<A> {
  public Iterator<A> iterator() {
    throw new UnsupportedOperationException("stub");
  }

  public void clear() {
    throw new UnsupportedOperationException("stub");
  }
}
