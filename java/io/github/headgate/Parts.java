package io.github.headgate;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Long answers to Python, in parts.
 *
 * <p>py4j writes what is longer than its buffer of 8 KiB in pieces, and the second one waits until the first is acknowledged, for which
 * Linux takes 40 ms. Several calls take one or two.
 */
public final class Parts {
  private static final int CHARS = 5000; // fewer than bytes: what is no ASCII, and what is escaped, takes more
  private static final int NUMBER_MAX = 60; // of longer ones the rest takes longer than the wait
  private static final char MORE = '\u0002'; // at the start, around the number of what is left: JSON escapes it
  private static final AtomicLong NUMBERS = new AtomicLong();
  private static final Map<Long, String> LEFT = new ConcurrentHashMap<>();

  private Parts() {}

  /** An answer, or its first part. */
  static String of(String answer) {
    if (answer == null || answer.length() <= CHARS || answer.length() > CHARS * NUMBER_MAX) return answer;
    int end = Character.isHighSurrogate(answer.charAt(CHARS - 1)) ? CHARS - 1 : CHARS;
    long number = NUMBERS.incrementAndGet();
    LEFT.put(number, answer.substring(end));
    return "" + MORE + number + MORE + answer.substring(0, end);
  }

  /** What is left, or the next part of it; once. */
  public static String next(long number) {
    return of(LEFT.remove(number));
  }
}
