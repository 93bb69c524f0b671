package io.github.lakegate.caches;

import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;

/**
 * The transaction ids of a Delta `Snapshot`, given to it by a caller who knows them.
 *
 * <p>Delta asks for them before each write that carries an id, and works them out with a Spark job over the table's whole
 * state for every new version. They are a lazy value of Scala: a field, and a bit that says whether it is set. Which bit
 * it is, is learned by watching Delta set it; where anything looks otherwise, nothing is ever set, and Delta does its own
 * work.
 */
public final class SnapshotTransactions {
  private static Field value;
  private static Field bits; // not null once both are found
  private static volatile int bit; // 0: not known

  private SnapshotTransactions() {}

  /** Delta's own answer: a Scala map of id to number. */
  public static Object of(Object snapshot) throws ReflectiveOperationException {
    if (!Caches.isOn()) return snapshot.getClass().getMethod("transactions").invoke(snapshot);
    snapshot.getClass().getMethod("setTransactions").invoke(snapshot); // the job, and all other lazy values in its way
    synchronized (snapshot) { // as Scala does, so no other value of this snapshot is set in between
      int before = isLocated(snapshot) ? bits.getInt(snapshot) : 0;
      Object transactions = snapshot.getClass().getMethod("transactions").invoke(snapshot);
      if (isLocated(snapshot)) {
        int set = before ^ bits.getInt(snapshot);
        if (Integer.bitCount(set) == 1 && value.get(snapshot) == transactions) bit = set;
      }
      return transactions;
    }
  }

  /** Whether `give` knows what to do: it may be nothing. */
  public static boolean isLearned() {
    return bit != 0 || !Caches.isOn();
  }

  /** Have the snapshot answer with this map; whether it now does, or had its own answer already. */
  public static boolean give(Object snapshot, Object transactions) throws ReflectiveOperationException {
    if (bit == 0 || !Caches.isOn()) return false;
    synchronized (snapshot) {
      int set = bits.getInt(snapshot);
      if ((set & bit) == 0) {
        value.set(snapshot, transactions);
        bits.setInt(snapshot, set | bit);
      }
      return true;
    }
  }

  /** Numbers as the JVM's `Long`, which py4j cannot make. */
  public static Map<String, Long> numbers(Map<String, String> decimal) {
    Map<String, Long> numbers = new HashMap<>();
    decimal.forEach((id, number) -> numbers.put(id, Long.valueOf(number)));
    return numbers;
  }

  private static synchronized boolean isLocated(Object snapshot) {
    if (bits != null) return true;
    try {
      Class<?> declaring = snapshot.getClass();
      while (!declaring.getName().endsWith(".Snapshot")) declaring = declaring.getSuperclass();
      Field found = declaring.getDeclaredField("bitmap$0");
      value = declaring.getDeclaredField("transactions");
      if (found.getType() != int.class) return false;
      value.setAccessible(true);
      found.setAccessible(true);
      bits = found;
      return true;
    } catch (ReflectiveOperationException | NullPointerException unlikeThat) {
      return false;
    }
  }
}
