package scala.math;

public class BigInt {
  public native boolean $greater(Object a);
  public static native BigInt apply(long a);
}
