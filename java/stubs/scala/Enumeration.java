package scala;

public abstract class Enumeration {

  public static abstract class Value {
  }
}
