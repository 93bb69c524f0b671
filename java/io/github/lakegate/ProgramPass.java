package io.github.lakegate;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * The turn that `lakegate turn` gave to this whole program: it may commit to the tables of that lock during the turn.
 *
 * <p>The holder of the turn (ops/external_command.py) writes the pass to a file, holds a lock on the file as long as it lives, and
 * removes it when the turn ends. So a process that the program has left behind has no pass any more, however the turn ended.
 */
final class ProgramPass {
  private static final String LOCK = System.getenv("LAKEGATE_LOCK");
  private static final String EPOCH = System.getenv("LAKEGATE_EPOCH");
  private static final String FILE = System.getenv("LAKEGATE_PASS");

  private ProgramPass() {}

  /** True if the program has the turn on this lock now. */
  static boolean isFor(String lock) {
    return lock.equals(LOCK) && fault() == null;
  }

  /** Why the program has no turn although it was given one; empty if it was given none. */
  static String told() {
    String fault = LOCK == null ? null : fault();
    return fault == null ? "" : "; the turn on " + LOCK + " (epoch " + EPOCH + ") that this program was given " + fault;
  }

  /** Why the pass is not valid; null if it is. One thread at a time: a JVM must not ask for the same lock twice. */
  private static synchronized String fault() {
    if (FILE == null) return "has no pass (LAKEGATE_PASS)";
    Path file = Path.of(FILE);
    try {
      String[] lines = Files.readString(file, StandardCharsets.UTF_8).split("\n", -1);
      // The lock's name is last: it may be any text.
      if (lines.length < 3 || !lines[0].equals(EPOCH) || !String.join("\n", java.util.Arrays.asList(lines).subList(2, lines.length)).equals(LOCK)) {
        return "is another one now";
      }
      // The machine's monotonic clock, which Python reads as time.monotonic_ns().
      if (System.nanoTime() - Long.parseLong(lines[1].trim()) >= 0) return "has run out";
      if (isUnlocked(file)) return "has lost its holder";
      return null;
    } catch (java.nio.file.NoSuchFileException ended) {
      return "is over";
    } catch (IOException | RuntimeException unreadable) {
      return "cannot be looked up (" + unreadable + ")";
    }
  }

  private static boolean isUnlocked(Path file) throws IOException {
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ);
        FileLock taken = channel.tryLock(0, Long.MAX_VALUE, true)) {
      return taken != null;
    }
  }
}
