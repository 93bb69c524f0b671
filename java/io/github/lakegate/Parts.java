package io.github.lakegate;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.Deflater;

/**
 * Long answers to Python, packed (zlib, then base64), and in parts where they are long even so.
 *
 * <p>py4j writes what is longer than its buffer of 8 KiB in pieces, and the second one waits until the first is acknowledged, for which
 * Linux takes 40 ms. Several calls take one or two, but each of them waits for a core: lines of a log become a quarter as long.
 */
public final class Parts {
  private static final int SHORT_MAX = 5000; // fewer than bytes: what is no ASCII, and what is escaped, takes more
  private static final int LONG_MAX = 300_000; // of longer ones the rest takes longer than the wait
  private static final int PART = 8000;
  private static final char MORE = '\u0002'; // at the start, around the number of what is left, or 0: JSON escapes it
  private static final AtomicLong NUMBERS = new AtomicLong();
  private static final Map<Long, String> LEFT = new ConcurrentHashMap<>();

  private Parts() {}

  /** An answer, or the first part of it packed. */
  static String of(String answer) {
    if (answer == null || answer.length() <= SHORT_MAX || answer.length() > LONG_MAX) return answer;
    byte[] plain = answer.getBytes(StandardCharsets.UTF_8);
    byte[] packed = new byte[plain.length + 1000]; // zlib adds 11 bytes, and 5 for each 16 KiB that it cannot shorten
    Deflater fast = new Deflater(Deflater.BEST_SPEED);
    fast.setInput(plain);
    fast.finish();
    int length = fast.deflate(packed);
    fast.end();
    return part(Base64.getEncoder().encodeToString(Arrays.copyOf(packed, length)));
  }

  /** The next part; once. */
  public static String next(long number) {
    String left = LEFT.remove(number);
    return left == null ? null : part(left);
  }

  private static String part(String packed) {
    if (packed.length() <= PART) return MORE + "0" + MORE + packed;
    long number = NUMBERS.incrementAndGet();
    LEFT.put(number, packed.substring(PART));
    return "" + MORE + number + MORE + packed.substring(0, PART);
  }
}
