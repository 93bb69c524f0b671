package scala.collection;

public interface Iterable<A> {
  Iterator<A> iterator();
}
