package io.github.lakegate.caches;

import java.util.Collection;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.Snapshot;
import scala.Option;

/**
 * The switch of this package, whose other classes reach into parts of Delta that may change with each of its releases.
 *
 * <p>Off, the others keep and replace nothing, and those that extend Delta's classes are not loaded: Delta does all the work itself,
 * and commits and statements are slower. The setting is `spark.lakegate.deltaCaches`; see `check_jvm` in jvm.py.
 */
public final class Caches {
  /** Up to this many files of a table are kept for quick statements. */
  public static final int FILES_MAX = 100_000;

  private static volatile boolean isOn = true;

  private Caches() {}

  /** Turns the caches of this JVM on or off, for all that begins afterwards. */
  public static void turn(boolean on) {
    isOn = on;
  }

  public static boolean isOn() {
    return isOn;
  }

  /** Lists the log again and returns the newest snapshot. */
  public static Snapshot update(DeltaLog log) {
    log.update(false, Option.empty(), Option.empty());
    return newest(log);
  }

  /** Returns the newest snapshot that this JVM knows, made a lasting one if that is possible. */
  public static Snapshot newest(DeltaLog log) {
    return isOn ? LastingSnapshot.prefer(log) : log.unsafeVolatileSnapshot();
  }

  /** Makes the newest snapshot a lasting one, as soon as Delta has it. */
  public static void install(DeltaLog log) {
    if (isOn) LastingSnapshot.install(log);
  }

  /** Returns the newest snapshot, to be released; null if its cache goes when a newer one comes. */
  public static Object hold(DeltaLog log) {
    return isOn ? LastingSnapshot.hold(log) : null;
  }

  /**
   * Returns the files of a snapshot, the first time perhaps by a Spark job; null if they are too many, or not certainly known.
   *
   * @param bytesMax the memory of the lists of all tables
   */
  public static Collection<KnownFile> files(Snapshot snapshot, long bytesMax) {
    if (!isOn || !snapshot.checksumOpt().isDefined()) return null;
    KnownFiles.Known known =
        snapshot instanceof LastingSnapshot lasting
            ? lasting.known(FILES_MAX, bytesMax)
            : KnownFiles.of(snapshot, () -> snapshot.allFiles().collectAsList(), FILES_MAX, bytesMax);
    return known == null ? null : known.files().values();
  }
}
