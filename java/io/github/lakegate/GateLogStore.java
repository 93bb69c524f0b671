package io.github.lakegate;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.delta.storage.CloseableIterator;
import io.delta.storage.LogStore;
import io.github.lakegate.caches.CommitTexts;
import io.github.lakegate.caches.OpenCommits;
import io.github.lakegate.caches.ScratchLogs;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * The gate that every commit passes: a log store around the scheme's own one. The scope of a commit's thread decides how the commit
 * is treated, see {@link Gate}; settings are those of the session, which Delta passes inside the Hadoop
 * configuration.
 */
public class GateLogStore extends LogStore {
  /** The job that must have the turn, and how long (ms) its commit may wait for it. */
  public static final String JOB = "spark.lakegate.job";

  public static final String WAIT_MS = "spark.lakegate.waitMs";

  /** `pass`: commits of this session outside of jobs also go to tables that take turns; `refuse` by default. */
  public static final String OUTSIDE = "spark.lakegate.outside";

  /** Followed by a scheme: the class of the store behind the gate. */
  public static final String BEHIND = "spark.lakegate.logStore.";

  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long PUBLISH_NANOS = 30_000_000_000L; // for which a stock commit waits for a publish

  /** The holder for whom a commit has waited: it waits for no other one, nor longer than announced at the start. */
  private record Waited(Path table, long version, Reservation.Held holder) {
    boolean isBefore(Path later, long laterVersion) {
      return table.equals(later) && version < laterVersion;
    }

    boolean isEnoughFor(Reservation.Held now) {
      return !holder.token().equals(now.token()) || !holder.isRunning();
    }
  }

  private static final ThreadLocal<Waited> WAITED = new ThreadLocal<>();
  private final Map<String, LogStore> stores = new ConcurrentHashMap<>();

  public GateLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    LogStore store = behind(path);
    long version = overwrite ? -1 : CommitTexts.versionOf(path);
    if (version < 0) {
      store.write(path, actions, overwrite, conf);
      return;
    }
    Path table = path.getParent().getParent();
    Gate.Scope scope = Gate.scope();
    String token = scope == null ? "" : scope.token();
    String history = scope == null ? null : scope.history();
    String job = Gate.jobOf(conf);
    Kept lines = new Kept(history == null ? actions : withHistory(actions, history));
    // No gate is made for a table that exists for one statement.
    if (scope != null && scope.mode().equals("stage")) throw Gate.keep(token, table, version, lines.all(), "was staged");
    Gate gate = Gate.of(table);
    boolean isCaptured = scope != null && scope.mode().equals("capture");
    boolean isDecided = token.startsWith(Gate.DECIDED); // a commit of a decided publish is made by whoever finds it
    String lock = isDecided ? null : gate.lockFor(job, conf);
    if (!isDecided) gate.awaitTurn(version, job, lock, conf.getLong(WAIT_MS, 0));
    long publishing = System.nanoTime();
    while (gate.isPublishing(token, job, conf)) { // looked up after the snapshot was read, so that no marker is missed
      if (isCaptured) throw Gate.keep(token, table, version, lines.all(), "waits for a publish of several tables");
      if (scope != null || System.nanoTime() - publishing > PUBLISH_NANOS)
        throw new Gate.PublishException("lakegate: commit " + version + " of " + table + " waits for a publish of several tables");
      Gate.pause(Gate.POLL_MS);
    }
    Waited waited = WAITED.get();
    WAITED.remove();
    // Delta tries a commit again at a later version, in the same thread: it has waited already.
    if (waited != null && !waited.isBefore(table, version)) waited = null;
    while (true) {
      Reservation.Held elsewhere = gate.reservedElsewhere(job, conf); // it may take a request
      // Delta's own lock may be off, and not every store's put is atomic within a process.
      synchronized (gate.putLock) {
        if (!isDecided) gate.awaitTurn(version, job, lock, 0);
        if (job != null && !isDecided) gate.requireToken(version, job, lines.all());
        Reservation.Held here = gate.reservedFrom(token);
        Reservation.Held holder = here == null ? elsewhere : here;
        if (holder == null || (!isCaptured && waited != null && waited.isEnoughFor(holder))) {
          OpenCommits.put(path);
          if (scope != null) Gate.DONE.put(token, -2L);
          try {
            store.write(path, lines, false, conf);
          } catch (FileAlreadyExistsException taken) {
            OpenCommits.isTaken();
            if (isCaptured) throw Gate.keep(token, table, version, lines.all(), "lost its version to another commit");
            if (waited != null) WAITED.set(waited);
            throw taken;
          }
          OpenCommits.isPut(path);
          CommitTexts.put(path, lines.all());
          gate.isPut(job);
          if (scope != null) gate.isDone(scope, version);
          return;
        }
        if (waited == null) waited = new Waited(table, version, holder);
      }
      if (isCaptured) throw Gate.keep(token, table, version, lines.all(), "waits for the statement that has reserved the table");
      Gate.pause(Gate.POLL_MS);
    }
  }

  @Override
  public CloseableIterator<String> read(Path path, Configuration conf) throws IOException {
    CloseableIterator<String> held = ScratchLogs.read(path);
    return held == null ? behind(path).read(path, conf) : held;
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    Iterator<FileStatus> held = ScratchLogs.listFrom(path);
    return held == null ? OpenCommits.without(behind(path).listFrom(path, conf)) : held;
  }

  @Override
  public Path resolvePathOnPhysicalStorage(Path path, Configuration conf) throws IOException {
    return behind(path).resolvePathOnPhysicalStorage(path, conf);
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) throws IOException {
    return behind(path).isPartialWriteVisible(path, conf);
  }

  private LogStore behind(Path path) throws IOException {
    String given = path.toUri().getScheme();
    String scheme = given == null ? "file" : given.toLowerCase(Locale.ROOT);
    LogStore known = stores.get(scheme);
    if (known != null) return known;
    // Entries and turns are keyed by a table's address: one table under two names would be two.
    if (scheme.equals("s3") || scheme.equals("s3n")) throw new IOException("lakegate: write " + path + " as s3a://; nothing was done");
    String name = initHadoopConf().get(BEHIND + scheme, usual(scheme));
    try {
      Class<?> found = Class.forName(name, true, getClass().getClassLoader());
      stores.putIfAbsent(scheme, (LogStore) found.getConstructor(Configuration.class).newInstance(initHadoopConf()));
    } catch (ReflectiveOperationException | LinkageError error) {
      throw new IOException("lakegate: there is no log store " + name + " for " + scheme + "; is its set of jars here?", error);
    }
    return stores.get(scheme);
  }

  private static String usual(String scheme) {
    return switch (scheme) {
      case "file" -> "io.github.lakegate.LinkLogStore";
      case "s3a" -> "io.github.lakegate.ConditionalPutLogStore";
      case "abfs", "abfss", "adl", "wasb", "wasbs" -> "io.delta.storage.AzureLogStore";
      case "gs" -> "io.delta.storage.GCSLogStore";
      default -> "io.delta.storage.HDFSLogStore";
    };
  }

  private static Iterator<String> withHistory(Iterator<String> actions, String history) throws IOException {
    List<String> lines = new ArrayList<>();
    while (actions.hasNext()) {
      String line = actions.next();
      if (line.startsWith("{\"commitInfo\"")) {
        ObjectNode action = (ObjectNode) JSON.readTree(line);
        ((ObjectNode) action.get("commitInfo")).setAll((ObjectNode) JSON.readTree(history));
        line = JSON.writeValueAsString(action);
      }
      lines.add(line);
    }
    return lines.iterator();
  }

  /** Remembers the lines that the store has read, so that nothing is copied unless the commit is kept. */
  private static final class Kept implements Iterator<String> {
    private final Iterator<String> source;
    private final List<String> seen = new ArrayList<>();
    private int given; // of `seen`, to the store

    Kept(Iterator<String> source) {
      this.source = source;
    }

    @Override
    public boolean hasNext() {
      return given < seen.size() || source.hasNext();
    }

    @Override
    public String next() {
      if (given == seen.size()) seen.add(source.next());
      return seen.get(given++);
    }

    /** All lines, whether the store has read them or not; the store can still read them. */
    List<String> all() {
      while (source.hasNext()) seen.add(source.next());
      return seen;
    }
  }
}
