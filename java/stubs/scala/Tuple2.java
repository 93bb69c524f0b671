package scala;

public class Tuple2<T1, T2> {
  public native T1 _1();
  public native T2 _2();
}
