package io.github.lakegate;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * The gate's state, set from Python, for each table of this JVM: whether it is governed, which job has the turn, which statement has
 * reserved it; and the commits that it kept. The gate does not know conflicts.
 *
 * <p>A turn ends by the clock of the JVM, so it also ends if Python hangs.
 */
public final class Gate {
  /** A commit was refused: its job does not have the turn. Nothing was written. */
  public static final class NoTurnException extends IOException {
    private static final long serialVersionUID = 1;

    NoTurnException(String message) {
      super(message);
    }
  }

  /** A commit of a job in its turn does not carry the turn's token, so it could be made twice. Nothing was written. */
  public static final class NoTokenException extends IOException {
    private static final long serialVersionUID = 1;

    NoTokenException(String message) {
      super(message);
    }
  }

  /** A publish of several tables is open: its commit must be the table's next one. Nothing was written. */
  public static final class PublishException extends IOException {
    private static final long serialVersionUID = 1;

    PublishException(String message) {
      super(message);
    }
  }

  /** The gate could not find out whether a table takes turns. Nothing was written. */
  public static final class NoteException extends IOException {
    private static final long serialVersionUID = 1;

    NoteException(String message, Throwable cause) {
      super(message, cause);
    }
  }

  /** A commit was kept instead of written, and can be taken with {@link #take}. Nothing was written. */
  public static final class KeptException extends IOException {
    private static final long serialVersionUID = 1;

    KeptException(String message) {
      super(message);
    }

    /** This is no failure, and some commands log the exception that ends them: a line is enough. */
    @Override
    public synchronized Throwable fillInStackTrace() {
      return this;
    }
  }

  /** The treatment of a thread's commits: see {@link #enter}. */
  record Scope(String mode, String token, String history) {}

  private record Commit(Path table, String text) {
    boolean isOf(Path other) {
      URI asked = other.toUri();
      URI own = table.toUri();
      if (asked.getScheme() == null) { // relative to Hadoop's default file system, or to the working directory
        return own.getPath().equals(asked.getPath()) || own.getPath().endsWith("/" + asked.getPath());
      }
      return asked.getPath().equals(own.getPath())
          && asked.getScheme().equalsIgnoreCase(own.getScheme() == null ? "file" : own.getScheme())
          && Objects.equals(asked.getAuthority(), own.getAuthority());
    }
  }

  /** Tokens of a turn's commits have this id; null: its commits need no token. */
  private record Turn(String job, long epoch, long deadlineNanos, String tokenId) {
    boolean isOf(String asking) {
      return job != null && job.equals(asking) && System.nanoTime() - deadlineNanos < 0;
    }

    String told() {
      if (job == null) return "nobody has the turn";
      return System.nanoTime() - deadlineNanos < 0 ? job + " has the turn" : "the turn of " + job + " has run out";
    }
  }

  static final String PUBLISH = "publish:", DECIDED = "publish:decided:"; // beginnings of tokens of a publish's commits
  private static final ThreadLocal<Scope> SCOPE = new ThreadLocal<>();
  private static final Turn NOBODY = new Turn(null, -1, 0, null);
  static final long POLL_MS = 5;
  private static final Map<String, Gate> TABLES = new ConcurrentHashMap<>();
  private static final Map<String, Commit> KEPT = new ConcurrentHashMap<>();
  static final Map<String, Long> DONE = new ConcurrentHashMap<>();
  private static final ThreadLocal<String> JOB = new ThreadLocal<>();
  private static final ThreadLocal<String> UNTOKENED = new ThreadLocal<>(); // reason of the thread's last refusal
  private static final Set<String> AWAITED = ConcurrentHashMap.newKeySet(); // job and table of each commit that waits
  private static final ObjectMapper JSON = new ObjectMapper();

  private final String table;
  private final AtomicReference<Turn> turn = new AtomicReference<>(); // null: this JVM was given none
  private volatile boolean isGoverned;
  private final AtomicLong puts = new AtomicLong(); // commits of jobs
  private final AtomicLong strays = new AtomicLong(); // commits of no job while a job had its turn
  private final Reservation reservation;

  /** Held during each commit. Heartbeats never wait for it: a commit may be slow. */
  final Object putLock = new Object();

  private Gate(String table) {
    this.table = table;
    this.reservation = new Reservation(table);
  }

  // ------------------------------------------------------------------------------------------------- called from Python

  /**
   * Sets the treatment of this thread's next commit; later commits pass, for example of a hook that compacts. A thread is a
   * statement: each Python thread has its own JVM thread, Delta commits in the thread that runs the statement, and settings of
   * the session would apply to all its threads.
   *
   * @param mode capture: keep the lines of a commit that lost its version; stage: keep them, never write them; pass.
   * @param token under which lines are kept, and versions reported
   * @param history a JSON object whose fields replace those of commitInfo, or null: the history of the statement whose
   *     actions are committed
   */
  public static void enter(String mode, String token, String history) {
    SCOPE.set(new Scope(mode, token, history));
  }

  /** From now on this thread's commits pass. */
  public static void leave() {
    SCOPE.remove();
  }

  /**
   * Makes a commit under the token of a statement, with its history, for a job; later commits of the thread are treated as before.
   *
   * @param token or null: no change
   * @param job or null: no change
   */
  static <T> T within(String token, String history, String job, Supplier<T> commit) {
    Scope scope = SCOPE.get();
    String actor = JOB.get();
    if (token != null) enter("pass", token, history);
    if (job != null) actAs(job);
    try {
      return commit.get();
    } finally {
      if (token != null) DONE.remove(token); // the transaction returns the version
      if (scope == null) leave();
      else SCOPE.set(scope);
      actAs(actor);
    }
  }

  /** From now on this thread commits as a job; null: as its session's settings name. Returns the job before. */
  public static String actAs(String job) {
    String before = JOB.get();
    if (job == null) JOB.remove();
    else JOB.set(job);
    return before;
  }

  /** From now on all commits of this table need a turn, not only those of jobs that have had it. */
  public static void govern(String table) {
    of(table).isGoverned = true;
  }

  /** The table is no longer governed, and its turns are forgotten. */
  public static void release(String table) {
    Gate gate = of(table);
    gate.isGoverned = false;
    gate.turn.set(null);
  }

  /**
   * Gives the turn, or extends it; an older epoch than the current one changes nothing.
   *
   * @param tokenId each commit of the job that changes rows must carry a token with this id and the turn's epoch; null: no token
   */
  public static boolean grant(String table, String job, long epoch, long millis, String tokenId) {
    Turn given = new Turn(job, epoch, System.nanoTime() + millis * 1_000_000, tokenId);
    return of(table).turn.accumulateAndGet(given, (was, now) -> was != null && was.epoch > now.epoch ? was : now) == given;
  }

  /** Ends the turn of an epoch, if it is the current one. */
  public static void revoke(String table, long epoch) {
    of(table).turn.updateAndGet(was -> was != null && was.epoch == epoch ? new Turn(null, epoch, 0, null) : was);
  }

  /** True if a commit of the job waits for its turn. */
  public static boolean isAwaited(String table, String job) {
    return AWAITED.contains(job + "\n" + of(table).table);
  }

  /** The number of commits of jobs that this JVM has made to the table. */
  public static long puts(String table) {
    return of(table).puts.get();
  }

  /** The number of commits outside of any job that this JVM has made to the table during a job's turn. */
  public static long strays(String table) {
    return of(table).strays.get();
  }

  /** Why a commit of this thread was last refused for its missing token, once; null if none was refused. */
  public static String untokened() {
    String told = UNTOKENED.get();
    UNTOKENED.remove();
    return told;
  }

  /**
   * The text of the note that makes a table governed; null if there is no note.
   *
   * @throws NoteException the note could not be looked up
   */
  public static String note(String table, Configuration conf) throws NoteException {
    Path note = new Path(new Path(table), "_lakegate/table.json");
    try {
      byte[] text = Bulk.readIfAny(note, conf);
      return text == null ? null : new String(text, StandardCharsets.UTF_8);
    } catch (IOException | RuntimeException unreadable) {
      throw new NoteException("lakegate: " + note + " cannot be read, so nothing was written: " + unreadable, unreadable);
    }
  }

  /**
   * Keeps all other commits away from a table for a limited time: of this JVM, and of other drivers with a gate. Returns false
   * while another statement has the reservation. The holder may renew it. A commit under way in this JVM ends first.
   *
   * @param job of the statement, or null: in its turn no other driver is asked or informed
   */
  public static boolean reserve(String table, String token, long holdMs, String job, Configuration conf) {
    Gate gate = of(table);
    Turn now = gate.turn.get();
    synchronized (gate.putLock) {
      return gate.reservation.take(token, holdMs, now != null && now.isOf(job), conf);
    }
  }

  /** Ends a reservation of this token. */
  public static void unreserve(String table, String token, Configuration conf) {
    of(table).reservation.end(token, conf);
  }

  /**
   * The commit that was kept for a token, once: its version, and its lines below it; null if none was kept.
   *
   * @param table to which it must belong, or null; for another table, the answer is an empty line and that table's path
   */
  public static String take(String token, String table) {
    Commit commit = KEPT.remove(token);
    if (commit == null || table == null || commit.isOf(new Path(table))) return commit == null ? null : Parts.of(commit.text);
    return "\n" + commit.table.toUri().getPath();
  }

  /** The version of the commit with this token, once; -1 if there was none, -2 if it has failed. */
  public static long done(String token) {
    return Objects.requireNonNullElse(DONE.remove(token), -1L);
  }

  // --------------------------------------------------------------------------------------------- called from the store

  static Gate of(Path table) {
    URI uri = table.toUri();
    String scheme = uri.getScheme() == null ? "file" : uri.getScheme().toLowerCase(Locale.ROOT);
    String authority = uri.getAuthority() == null ? "" : "//" + uri.getAuthority();
    return TABLES.computeIfAbsent(scheme + ":" + authority + uri.getPath(), Gate::new);
  }

  private static Gate of(String table) {
    return of(new Path(table));
  }

  /**
   * The lock of this table's turns, if it concerns a commit of the job: null if there is none, if the job has the turn, or if
   * this session or program may write outside of turns. Looked up again each time: other processes adopt and release tables.
   */
  String lockFor(String job, Configuration conf) throws IOException {
    Turn now = turn.get();
    if (now != null && now.isOf(job)) return null;
    if (isGoverned) return "";
    if (conf.get(GateLogStore.OUTSIDE, "refuse").equals("pass")) return null;
    String text = note(table, conf);
    if (text == null) return null;
    JsonNode lock;
    try {
      JsonNode said = JSON.readTree(text);
      lock = said == null ? null : said.get("lock");
    } catch (IOException damaged) {
      throw new NoteException("lakegate: the note next to " + table + " is no JSON; nothing was written", damaged);
    }
    if (lock == null) throw new NoteException("lakegate: the note next to " + table + " names no lock; nothing was written", null);
    return ProgramPass.isFor(lock.asText()) ? null : lock.asText();
  }

  /**
   * Returns when the job has the turn, or needs none.
   *
   * @param lock as {@link #lockFor} returns it
   */
  void awaitTurn(long version, String job, String lock, long waitMs) throws IOException {
    long begun = System.nanoTime();
    String waiting = job + "\n" + table;
    try {
      while (true) {
        Turn now = turn.get();
        if (now == null ? lock == null : now.isOf(job)) return;
        // A table is made before it can be entered: version 0 needs no turn, and the first writer makes it.
        if (lock == null && (job == null || version == 0)) return;
        if (System.nanoTime() - begun >= waitMs * 1_000_000) {
          String who = job == null ? "" : " by " + job;
          String which = lock == null || lock.isEmpty() ? "" : "; the table takes turns on the lock " + lock + ProgramPass.told();
          String why = (now == null ? NOBODY : now).told() + which;
          throw new NoTurnException("lakegate: commit " + version + " of " + table + who + " was refused: " + why);
        }
        if (job != null) AWAITED.add(waiting);
        pause(POLL_MS);
      }
    } finally {
      AWAITED.remove(waiting); // another commit that waits for the same turn adds it again at its next look
    }
  }

  void isPut(String job) {
    Turn now = turn.get();
    if (job != null) puts.incrementAndGet();
    else if (now != null && now.tokenId != null && now.isOf(now.job)) strays.incrementAndGet();
  }

  /**
   * Refuses a commit of a job in its turn that changes rows and does not carry the turn's token: when the batch is retried,
   * nothing would show that the commit was made.
   */
  void requireToken(long version, String job, List<String> lines) throws IOException {
    Turn now = turn.get();
    if (job == null || now == null || now.tokenId == null || version == 0 || !now.isOf(job)) return;
    if (!Tokens.changesRows(lines) || Tokens.isIn(lines, now.tokenId, now.epoch)) return;
    String told = "lakegate: commit " + version + " of " + table + " by " + job + " was refused: it does not carry the token of the "
        + "turn, so it would be made twice if the work came again";
    UNTOKENED.set(told);
    throw new NoTokenException(told);
  }

  /** The job that this thread commits as. */
  static String jobOf(Configuration conf) {
    return JOB.get() == null ? conf.get(GateLogStore.JOB) : JOB.get();
  }

  /** Another statement of this JVM that has reserved the table, or null. */
  Reservation.Held reservedFrom(String token) {
    return reservation.heldHere(token);
  }

  /** A statement of another driver that has reserved it, or null; a job in its turn does not ask. */
  Reservation.Held reservedElsewhere(String job, Configuration conf) {
    Turn now = turn.get();
    return now != null && now.isOf(job) ? null : reservation.heldElsewhere(conf);
  }

  /** True if a publish of several tables, to which the commit does not belong, is open on this table; not asked in the job's turn. */
  boolean isPublishing(String token, String job, Configuration conf) throws IOException {
    Turn now = turn.get();
    if (token.startsWith(PUBLISH) || (now != null && now.isOf(job))) return false;
    Path notes = new Path(new Path(table), "_lakegate/publish");
    return !Bulk.names(notes.getFileSystem(conf), notes).isEmpty();
  }

  static IOException keep(String token, Path table, long version, List<String> lines, String why) {
    KEPT.put(token, new Commit(table, version + "\n" + String.join("\n", lines)));
    return new KeptException("lakegate: commit " + version + " of " + table + " " + why + "; this is no error");
  }

  /** The thread's scope, or null. */
  static Scope scope() {
    return SCOPE.get();
  }

  void isDone(Scope scope, long version) {
    DONE.put(scope.token, version);
    SCOPE.remove();
    // Otherwise a hook that commits in this thread would wait for its own statement.
    reservation.end(scope.token);
  }

  static void pause(long millis) throws InterruptedIOException {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("lakegate: interrupted while a commit waited");
    }
  }
}
