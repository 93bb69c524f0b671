package io.github.headgate;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * That a statement has a table to itself for a while. Other drivers are told by a note beside the table, which each of them heeds
 * for as long as the note says, by its own clock, from when it first sees it: a driver that died holds nobody up for longer.
 *
 * <p>Nothing is wrong where somebody does not see it, or does not heed it: the statement loses again, and is executed again.
 */
final class Reservation {
  private record Held(String token, long untilNanos) {
    boolean isRunning() {
      return System.nanoTime() - untilNanos < 0;
    }
  }

  private static final long LOOK_NANOS = 100_000_000; // between two looks at the note: each may be a request

  private final Path note;
  private final AtomicReference<Held> here = new AtomicReference<>();

  // Guarded by this.
  private String written; // the note as this JVM wrote it
  private String seen; // as another one wrote it
  private Held elsewhere;
  private long lookedNanos = System.nanoTime() - LOOK_NANOS;

  Reservation(String table) {
    note = new Path(new Path(table), "_headgate/reserved");
  }

  /** Takes it, or takes it anew for so long from now on; false while another has it. */
  boolean take(String token, long holdMs, Configuration conf) {
    long holdNanos = holdMs * 1_000_000;
    Held taken = new Held(token, System.nanoTime() + holdNanos);
    if (here.updateAndGet(was -> was == null || was.token.equals(token) || !was.isRunning() ? taken : was) != taken) return false;
    synchronized (this) {
      if (heldElsewhere(conf) == null) look(conf); // what was seen a moment ago is not enough to go by
      if (elsewhere != null) {
        end(token);
        return false;
      }
      try {
        FileSystem files = note.getFileSystem(conf);
        written = token + " " + holdMs + " " + System.nanoTime(); // no two are the same
        try (var out = files.create(note, true)) {
          out.write(written.getBytes(StandardCharsets.UTF_8));
        }
      } catch (IOException notWritten) {
        written = null; // other drivers are not told
      }
      return true;
    }
  }

  /** Ends it for this JVM's commits. */
  void end(String token) {
    here.updateAndGet(was -> was != null && was.token.equals(token) ? null : was);
  }

  /** Ends it for all. */
  void end(String token, Configuration conf) {
    end(token);
    synchronized (this) {
      if (written != null && written.startsWith(token + " ")) {
        remove(written, conf);
        written = null;
      }
    }
  }

  /** The token of another statement of this JVM that has it, or null. */
  String heldHere(String token) {
    Held now = here.get();
    return now == null || now.token.equals(token) || !now.isRunning() ? null : now.token;
  }

  /** The token of a statement of another driver that has it, or null. May be a request to the store. */
  synchronized String heldElsewhere(Configuration conf) {
    if (System.nanoTime() - lookedNanos >= LOOK_NANOS) look(conf);
    return elsewhere == null || !elsewhere.isRunning() ? null : elsewhere.token;
  }

  private void look(Configuration conf) {
    String text = read(conf);
    lookedNanos = System.nanoTime();
    String[] words = text == null ? new String[0] : text.split(" ");
    if (words.length != 3 || !words[1].matches("\\d{1,15}") || text.equals(written)) {
      elsewhere = null; // none, or one that is being written
      return;
    }
    if (!text.equals(seen)) {
      seen = text;
      elsewhere = new Held(words[0], lookedNanos + Long.parseLong(words[1]) * 1_000_000);
    } else if (elsewhere != null && !elsewhere.isRunning()) {
      // Whoever wrote it is gone, or slower than it thought. Nobody else need wait for it.
      elsewhere = null;
      remove(text, conf);
    }
  }

  private String read(Configuration conf) {
    try {
      byte[] text = Bulk.read(note, conf);
      return text == null ? null : new String(text, StandardCharsets.UTF_8);
    } catch (IOException unknown) {
      return null;
    }
  }

  private void remove(String text, Configuration conf) {
    if (!text.equals(read(conf))) return;
    try {
      note.getFileSystem(conf).delete(note, false);
    } catch (IOException stays) {
      // It is heeded once by each driver that sees it.
    }
  }
}
