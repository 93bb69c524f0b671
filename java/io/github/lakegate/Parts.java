package io.github.lakegate;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.Deflater;

/**
 * Long answers to Python, compressed (zlib, then base64), and split into parts if they are still long.
 *
 * <p>py4j writes an answer longer than its buffer of 8 KiB in pieces. The second piece waits until the first is acknowledged, for which
 * Linux takes 40 ms. Several calls take one or two, but each of them waits for a core: compression makes lines of a log four times shorter.
 */
public final class Parts {
  private static final int SHORT_MAX = 5000; // fewer than bytes: non-ASCII and escaped characters take more
  private static final int LONG_MAX = 300_000; // for longer answers, the rest of the transfer takes longer than the wait
  private static final int PART = 8000;
  private static final char MORE = '\u0002'; // at the start, around the number of the rest, or 0: JSON escapes it
  private static final AtomicLong NUMBERS = new AtomicLong();
  private static final Map<Long, String> LEFT = new ConcurrentHashMap<>();

  private Parts() {}

  /** An answer, or its first part, compressed. */
  public static String of(String answer) {
    if (answer == null || answer.length() <= SHORT_MAX || answer.length() > LONG_MAX) return answer;
    byte[] plain = answer.getBytes(StandardCharsets.UTF_8);
    byte[] packed = new byte[plain.length + 1000]; // zlib adds 11 bytes, and 5 for each 16 KiB that it cannot compress
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
