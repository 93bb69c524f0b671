package io.github.headgate;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/**
 * Commits of this JVM that are put, and of which Delta does not know the checksum yet: other threads that list the log are not told of
 * them.
 *
 * <p>Whoever lists such a commit has a job of Spark work out what the checksum will say, and has Delta's lock meanwhile: the
 * transaction waits for it, and those who wait for the transaction.
 */
final class OpenCommits {
  private record Put(Path commit, long atNanos) {}

  private static final Put NONE = new Put(null, 0);
  private static final Map<Thread, Put> PUTS = new ConcurrentHashMap<>();

  /** Not for longer: who is slow after its put, as storage may be, holds nobody up. */
  private static final long UNTOLD_NANOS = 1_000_000_000L;

  private OpenCommits() {}

  /** This thread's next commit is such a one. */
  static void begin() {
    PUTS.put(Thread.currentThread(), NONE);
  }

  /** Before it is put. */
  static void put(Path commit) {
    PUTS.computeIfPresent(Thread.currentThread(), (thread, none) -> new Put(commit, System.nanoTime()));
  }

  /** Others are told of it. */
  static void end() {
    PUTS.remove(Thread.currentThread());
  }

  /** A listing without the last commit, if it is another thread's. One that others have gone on from is told. */
  static Iterator<FileStatus> without(Iterator<FileStatus> files) {
    if (PUTS.isEmpty()) return files;
    List<FileStatus> told = new ArrayList<>();
    int last = -1;
    while (files.hasNext()) {
      told.add(files.next());
      if (GateLogStore.versionOf(told.get(told.size() - 1).getPath()) >= 0) last = told.size() - 1;
    }
    if (last >= 0 && isOthers(told.get(last).getPath())) told.remove(last);
    return told.iterator();
  }

  private static boolean isOthers(Path commit) {
    for (Map.Entry<Thread, Put> each : PUTS.entrySet()) {
      Put put = each.getValue();
      boolean isIt = commit.equals(put.commit) && System.nanoTime() - put.atNanos < UNTOLD_NANOS;
      if (isIt && each.getKey() != Thread.currentThread()) return true;
    }
    return false;
  }
}
