package io.github.lakegate.caches;

import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;

/**
 * The transaction ids of a Delta `Snapshot`, set by a caller who knows them.
 *
 * <p>Delta needs them before each write that carries an id, and computes them with a Spark job over the table's whole
 * state for every new version. They are a lazy value of Scala: a field, and a bit that states whether it is set. We learn
 * which bit it is by watching Delta set it. If anything looks different, nothing is ever set, and Delta computes them
 * itself.
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

  /** Makes the snapshot answer with this map; returns true if it now does, or had its own answer already. */
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
