package scala;

public interface Function2<T1, T2, R> {
  R apply(T1 one, T2 other);
}
