package io.github.lakegate.caches;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * Commits of this JVM that are written, and whose checksum Delta does not know yet: they are hidden from other threads that list the
 * log.
 *
 * <p>A thread that lists such a commit makes a Spark job compute the content of the checksum, and holds Delta's lock meanwhile: the
 * transaction waits for the lock, and others for the transaction. A commit that one listing has shown is shown by later ones, too.
 */
public final class OpenCommits {
  private record Put(Path commit, long atNanos) {}

  private static final Put NONE = new Put(null, 0);
  private static final Map<Thread, Put> PUTS = new ConcurrentHashMap<>();
  private static final Map<Path, Long> KNOWN = new ConcurrentHashMap<>(); // by log: the last version that was shown or is not hidden

  /** Limit of the time that a commit is hidden: a thread that is slow after its commit, for example by storage, blocks no other. */
  private static final long UNTOLD_NANOS = 1_000_000_000L;

  private OpenCommits() {}

  /** This thread's next commit is such a one. */
  public static void begin() {
    if (Caches.isOn()) PUTS.put(Thread.currentThread(), NONE);
  }

  /** Before it is put. */
  public static void put(Path commit) {
    PUTS.computeIfPresent(Thread.currentThread(), (thread, none) -> new Put(commit, System.nanoTime()));
  }

  /** The version of this thread's commit is another's, which the end of this one does not show. */
  public static void isTaken() {
    PUTS.computeIfPresent(Thread.currentThread(), (thread, put) -> NONE);
  }

  /** A commit was put, which is no secret if it is not such a one: another's put of the same version, to be refused, hides it not. */
  public static void isPut(Path commit) {
    if (!PUTS.containsKey(Thread.currentThread())) tell(commit);
  }

  /** Others are told of it. */
  public static void end() {
    Put put = PUTS.remove(Thread.currentThread());
    if (put != null && put.commit != null) tell(put.commit);
  }

  /** A listing without the last commit, if it is another thread's. One that others have gone on from is told. */
  public static Iterator<FileStatus> without(Iterator<FileStatus> files) {
    List<FileStatus> told = new ArrayList<>();
    files.forEachRemaining(told::add);
    int last = told.size() - 1;
    while (last >= 0 && CommitTexts.versionOf(told.get(last).getPath()) < 0) last--;
    if (last < 0) return told.iterator();
    Path commit = told.get(last).getPath();
    if (isOthers(commit)) told.remove(last);
    else tell(commit);
    return told.iterator();
  }

  private static void tell(Path commit) {
    KNOWN.merge(commit.getParent(), CommitTexts.versionOf(commit), Math::max);
  }

  private static boolean isOthers(Path commit) {
    if (PUTS.isEmpty() || CommitTexts.versionOf(commit) <= KNOWN.getOrDefault(commit.getParent(), -1L)) return false;
    for (Map.Entry<Thread, Put> each : PUTS.entrySet()) {
      Put put = each.getValue();
      boolean isIt = commit.equals(put.commit) && System.nanoTime() - put.atNanos < UNTOLD_NANOS;
      if (isIt && each.getKey() != Thread.currentThread()) return true;
    }
    return false;
  }
}
