package scala.collection.immutable;

public class Map$ {
  public static final Map$ MODULE$ = null;
  public native <K, V> Map<K, V> empty();

}
