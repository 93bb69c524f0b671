package scala;

public interface Function0<R> {
  R apply();
}
