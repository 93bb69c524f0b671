package scala;

public interface Function1<A, B> {
  B apply(A argument);
}
