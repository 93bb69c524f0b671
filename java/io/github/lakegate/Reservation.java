package io.github.lakegate;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Instant;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Reserves a table for one statement for a limited time. A note next to the table informs other drivers. Each of them waits for
 * as long as the note states, by its own clock, from when it first sees it. The note names its process, and is written again every few
 * seconds while the statement runs: a driver that died blocks no other driver on its own machine, and those on others for a minute.
 *
 * <p>A driver that does not see or respect the note breaks nothing: the statement loses again, and is executed again.
 */
final class Reservation {
  /** The statement that holds the reservation, and until when others wait. */
  record Held(String token, long untilNanos) {
    boolean isRunning() {
      return System.nanoTime() - untilNanos < 0;
    }
  }

  /** Session setting: after this time without a renewal a driver counts as dead. */
  static final String QUIET = "spark.lakegate.quietMs";

  private static final long LOOK_NANOS = 100_000_000; // between two reads of the note: each may be a request
  private static final long YIELD_NANOS = 2 * LOOK_NANOS; // so that a driver that polls finds no note once
  private static final long HOLD_MAX_MS = 86_400_000;
  private static final long CLOCKS_MS = 600_000; // clocks of machines may differ by this
  private static final long RENEW_MS = 15_000;
  private static final long QUIET_MS = 60_000; // a renewable note that was not renewed for this time belongs to a dead driver
  private static final String JVM = UUID.randomUUID().toString();
  private static final String MACHINE = machine();
  private static final ScheduledExecutorService RENEWING =
      Executors.newSingleThreadScheduledExecutor(
          run -> {
            Thread thread = new Thread(run, "lakegate-reservations");
            thread.setDaemon(true);
            return thread;
          });

  private final Path note;
  private final AtomicReference<Held> here = new AtomicReference<>();

  // Guarded by this.
  private String seen; // the note as another driver wrote it
  private Held elsewhere;
  private long seenNanos; // when the note was first seen as it is
  private long lookedNanos = System.nanoTime() - LOOK_NANOS;
  private long yieldedNanos = System.nanoTime() - YIELD_NANOS;

  Reservation(String table) {
    note = new Path(new Path(table), "_lakegate/reserved");
  }

  /**
   * Takes the reservation, or renews it for this time from now; false while another statement has it.
   *
   * @param isAlone no other driver commits now, as in a turn: none is asked, and none is informed
   */
  boolean take(String token, long holdMs, boolean isAlone, Configuration conf) {
    long held = Math.min(Math.max(holdMs, 0), HOLD_MAX_MS);
    Held taken = new Held(token, System.nanoTime() + held * 1_000_000);
    if (here.updateAndGet(was -> was == null || was.token.equals(token) || !was.isRunning() ? taken : was) != taken) return false;
    if (isAlone) return true;
    synchronized (this) {
      if (heldElsewhere(conf) == null) look(conf); // the last look is too old to decide by
      if (elsewhere != null || System.nanoTime() - yieldedNanos < YIELD_NANOS) {
        end(token);
        return false;
      }
      try {
        tell(token, held, conf);
        RENEWING.schedule(() -> renew(taken, conf), RENEW_MS, TimeUnit.MILLISECONDS);
      } catch (IOException | RuntimeException notWritten) {
        return true; // other drivers are not informed
      }
      return true;
    }
  }

  private void tell(String token, long heldMs, Configuration conf) throws IOException {
    ProcessHandle self = ProcessHandle.current();
    String owner = String.join("/", JVM, "" + System.nanoTime(), MACHINE, "" + self.pid(), "" + startOf(self));
    try (var out = note.getFileSystem(conf).create(note, true)) {
      out.write((token + " " + heldMs + " " + owner).getBytes(StandardCharsets.UTF_8));
    }
  }

  /** Writes the note again with the remaining time, while the statement runs. */
  private synchronized void renew(Held held, Configuration conf) {
    if (here.get() != held || !held.isRunning()) return;
    try {
      String text = read(conf);
      if (text == null || !isOurs(text) || !text.startsWith(held.token + " ")) return;
      tell(held.token, (held.untilNanos - System.nanoTime()) / 1_000_000, conf);
    } catch (IOException | RuntimeException notWritten) {
      // Tried again next time; if it keeps failing, others count this driver as dead.
    }
    RENEWING.schedule(() -> renew(held, conf), RENEW_MS, TimeUnit.MILLISECONDS);
  }

  /** Ends the reservation for this JVM's commits. */
  void end(String token) {
    here.updateAndGet(was -> was != null && was.token.equals(token) ? null : was);
  }

  /** Ends the reservation for all drivers. */
  void end(String token, Configuration conf) {
    end(token);
    synchronized (this) {
      try {
        String text = read(conf);
        if (text == null || !isOurs(text) || !text.startsWith(token + " ")) return;
        yieldedNanos = System.nanoTime();
        note.getFileSystem(conf).delete(note, false);
      } catch (IOException | RuntimeException stays) {
        // Others wait for as long as the note states.
      }
    }
  }

  /** Another statement of this JVM that has the reservation, or null. */
  Held heldHere(String token) {
    Held now = here.get();
    return now == null || now.token.equals(token) || !now.isRunning() ? null : now;
  }

  /** A statement of another driver that has the reservation, or null. May send a request to the store. */
  synchronized Held heldElsewhere(Configuration conf) {
    if (System.nanoTime() - lookedNanos >= LOOK_NANOS) look(conf);
    return elsewhere == null || !elsewhere.isRunning() ? null : elsewhere;
  }

  private void look(Configuration conf) {
    try {
      String text = read(conf);
      String[] words = text == null ? new String[0] : text.split(" ");
      if (words.length != 3 || !words[1].matches("\\d{1,8}") || isOurs(text)) {
        seen = null;
        elsewhere = null; // none, or one that is being written
      } else if (!text.equals(seen)) {
        long heldMs = Math.min(Long.parseLong(words[1]), HOLD_MAX_MS);
        FileSystem files = note.getFileSystem(conf);
        long ageMs = System.currentTimeMillis() - files.getFileStatus(note).getModificationTime();
        // A note far in the past belongs to a dead driver, and nobody has waited since for as long as it states.
        long ageMaxMs = isRenewed(words[2]) ? Math.min(heldMs, QUIET_MS) : heldMs;
        long leftMs = ageMs > ageMaxMs + CLOCKS_MS ? 0 : heldMs;
        seenNanos = System.nanoTime();
        elsewhere = new Held(words[0], seenNanos + leftMs * 1_000_000);
        seen = text;
      }
      if (elsewhere != null && (!elsewhere.isRunning() || isDead(words[2], conf))) {
        // Its writer is dead, or slower than it expected. No other driver need wait for it.
        elsewhere = null;
        if (text.equals(read(conf))) note.getFileSystem(conf).delete(note, false);
      }
    } catch (IOException | RuntimeException unknown) {
      // The last known state stays.
    } finally {
      lookedNanos = System.nanoTime();
    }
  }

  /** True if the driver has ended: by its silence, or on this machine by its process. */
  private boolean isDead(String owner, Configuration conf) {
    if (!isRenewed(owner)) return false;
    if (System.nanoTime() - seenNanos > conf.getLong(QUIET, QUIET_MS) * 1_000_000) return true;
    String[] parts = owner.split("/");
    if (!parts[2].equals(MACHINE)) return false;
    var process = ProcessHandle.of(Long.parseLong(parts[3]));
    return process.isEmpty() || !process.get().isAlive() || startOf(process.get()) != Long.parseLong(parts[4]);
  }

  /** True if a note names its process: then it is also renewed. */
  private static boolean isRenewed(String owner) {
    return owner.matches("[^/]+/[^/]+/[^/]+/\\d{1,18}/\\d{1,18}");
  }

  private static long startOf(ProcessHandle process) {
    return process.info().startInstant().map(Instant::toEpochMilli).orElse(0L);
  }

  /** Identifies this machine since its start; in containers, whose processes do not see each other, each container. */
  private static String machine() {
    try {
      String boot = Files.readString(java.nio.file.Path.of("/proc/sys/kernel/random/boot_id")).strip();
      return boot + "@" + Files.readString(java.nio.file.Path.of("/proc/sys/kernel/hostname")).strip();
    } catch (IOException | RuntimeException unknown) {
      return JVM; // equal to no other process
    }
  }

  private static boolean isOurs(String text) {
    return text.contains(" " + JVM + "/");
  }

  private String read(Configuration conf) throws IOException {
    byte[] text = Bulk.read(note, conf);
    return text == null ? null : new String(text, StandardCharsets.UTF_8);
  }
}
