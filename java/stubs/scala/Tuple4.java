package scala;

public class Tuple4<T1, T2, T3, T4> {
  public native T1 _1();
  public native T2 _2();
  public native T3 _3();
  public native T4 _4();
}
