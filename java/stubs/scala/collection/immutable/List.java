package scala.collection.immutable;

public abstract class List<A> implements Seq<A> {
}
