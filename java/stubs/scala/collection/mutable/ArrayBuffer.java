package scala.collection.mutable;

import scala.collection.Iterator;

public class ArrayBuffer<A> {
  public Iterator<A> iterator() {
    throw new UnsupportedOperationException("stub");
  }

  public void clear() {
    throw new UnsupportedOperationException("stub");
  }
}
