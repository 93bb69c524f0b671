package scala;

import scala.collection.immutable.List;

public abstract class Option<A> {
  public static <A> Option<A> empty() {
    throw new UnsupportedOperationException("stub");
  }

  public static <A> Option<A> apply(A value) {
    throw new UnsupportedOperationException("stub");
  }

  public final boolean isDefined() {
    throw new UnsupportedOperationException("stub");
  }

  public abstract A get();

  public native boolean forall(Function1<A, Object> a);
  public native List<A> toList();
}
