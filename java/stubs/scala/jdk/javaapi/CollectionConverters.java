package scala.jdk.javaapi;

public class CollectionConverters {
  public static native <A> scala.collection.mutable.Set<A> asScala(java.util.Set<A> a);
}
