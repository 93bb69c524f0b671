package io.github.lakegate;

import io.github.lakegate.caches.CommitTexts;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.storage.LogStore;
import scala.collection.Iterator;

/** Does in one call what takes py4j several calls for each file of a folder. Answers are text, because a list takes calls, too. */
public final class Bulk {
  private static final String COMMIT = "\\d{20}\\.json";
  private static final Set<String> LOCAL = // the second one comes with Spark's Hive; in a wrapper it is the first one
      Set.of("org.apache.hadoop.fs.LocalFileSystem", "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem");
  private static final int KIND_WIDTH = 24; // an action's kind is the first key of its line
  private static final ExecutorService ASKING = Executors.newFixedThreadPool(8, Bulk::daemon); // requests to storage mostly wait

  private Bulk() {}

  /**
   * The commits of a table's log from a version on. Each begins with a character that JSON does not have and a line: number, time of
   * modification (ms), and 1 or 0 for complete or not. Below it, for versions after `known`, are the actions; of a long commit only
   * those of the kinds `txn` and `protocol`. Empty if there is no log, null if a commit was cleaned up between being listed and
   * being read.
   *
   * @param knownAtMs time of modification of `known`; -1 if it is not known
   */
  public static String commits(LogStore store, Path log, long from, long known, long knownAtMs, Configuration conf)
      throws IOException {
    StringBuilder found = new StringBuilder();
    boolean isOfKnownTable = false;
    Iterator<FileStatus> files;
    try {
      files = store.listFrom(new Path(log, String.format(Locale.ROOT, "%020d.json", from)), conf);
    } catch (FileNotFoundException | NoSuchFileException noLog) {
      return "";
    }
    while (files.hasNext()) {
      FileStatus file = files.next();
      String name = file.getPath().getName();
      if (!name.matches(COMMIT)) continue;
      long version = Long.parseLong(name.substring(0, 20));
      if (version == known) isOfKnownTable = file.getModificationTime() == knownAtMs;
      boolean isWhole = version > known && file.getLen() <= CommitTexts.SHORT_MAX;
      found.append('\u0001').append(version).append(' ').append(file.getModificationTime()).append(isWhole ? " 1\n" : " 0\n");
      if (version <= known) continue;
      try {
        if (isWhole) {
          found.append(CommitTexts.of(file, isOfKnownTable, store, conf));
          continue;
        }
        Iterator<String> lines = store.read(file.getPath(), conf).iterator();
        while (lines.hasNext()) {
          String line = lines.next();
          String kind = line.substring(0, Math.min(KIND_WIDTH, line.length()));
          if (kind.contains("\"txn\"") || kind.contains("\"protocol\"")) found.append(line).append('\n');
        }
      } catch (FileNotFoundException | NoSuchFileException cleaned) {
        return null;
      }
    }
    return Parts.of(found.toString());
  }

  /**
   * The whole commits of a table's log after a version. Each begins with a character that JSON does not have and a line with its
   * number; below it are the commit's lines. For the version itself, if it exists, the number alone. Null if a commit was
   * cleaned up between being listed and being read.
   */
  public static String texts(DeltaLog log, long after, Configuration conf) throws IOException {
    StringBuilder found = new StringBuilder();
    LogStore store = log.store();
    String first = String.format(Locale.ROOT, "%020d.json", Math.max(after, 0));
    Iterator<FileStatus> files = store.listFrom(new Path(log.logPath(), first), conf);
    while (files.hasNext()) {
      FileStatus file = files.next();
      String name = file.getPath().getName();
      if (!name.matches(COMMIT)) continue;
      long version = Long.parseLong(name.substring(0, 20));
      found.append('\u0001').append(version).append('\n');
      if (version <= after) continue;
      try {
        found.append(CommitTexts.of(file, false, store, conf));
      } catch (FileNotFoundException | NoSuchFileException cleaned) {
        return null;
      }
    }
    return Parts.of(found.toString());
  }

  /** Writes a new file below a folder. */
  public static void write(Path folder, String name, Configuration conf, byte[] content) throws IOException {
    write(new Path(folder, name), conf, content);
  }

  /**
   * Writes a new file; fails if it exists.
   *
   * <p>On local disk without Hadoop, which starts a `chmod` process for the file, and another one for its checksum: 3 ms each on
   * an idle machine, and 15 if other writers of the table use the cores.
   */
  public static void write(Path path, Configuration conf, byte[] content) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    if (!LOCAL.contains(files.getClass().getName())) {
      try (OutputStream out = files.create(path, false)) {
        out.write(content);
      }
      return;
    }
    java.nio.file.Path file = Paths.get(path.toUri().getPath());
    Files.createDirectories(file.getParent());
    Files.write(file, content, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    // The same permissions as with Hadoop, whatever the mask of this process is.
    FsPermission permission = FsPermission.getFileDefault().applyUMask(FsPermission.getUMask(conf));
    Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(permission.toString()));
  }

  /** The bytes of a file below a folder; null if it does not exist. */
  public static byte[] read(Path folder, String name, Configuration conf) throws IOException {
    return read(new Path(folder, name), conf);
  }

  /** A file's bytes; null if it does not exist. */
  public static byte[] read(Path path, Configuration conf) throws IOException {
    try (InputStream in = path.getFileSystem(conf).open(path)) {
      return in.readAllBytes();
    } catch (FileNotFoundException none) {
      return null;
    }
  }

  /**
   * A file's bytes; null only if it certainly does not exist. A failed lookup, a folder, and a dangling link are errors: for
   * all of these Hadoop reports on local disk that there is no such file.
   */
  static byte[] readIfAny(Path path, Configuration conf) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    if (!LOCAL.contains(files.getClass().getName())) {
      byte[] found = read(path, conf);
      if (found == null && files.exists(path)) throw new IOException("it is there and is no file");
      return found;
    }
    java.nio.file.Path file = Paths.get(path.toUri().getPath());
    try {
      return Files.readAllBytes(file);
    } catch (NoSuchFileException none) {
      for (java.nio.file.Path one = file; one != null; one = one.getParent()) {
        if (!Files.exists(one, LinkOption.NOFOLLOW_LINKS)) continue;
        if (Files.notExists(one)) throw new IOException(one + " is a link to nothing");
        return null;
      }
      return null;
    }
  }

  /** A part of a file. */
  public static byte[] readRange(Path path, Configuration conf, long offset, int length) throws IOException {
    byte[] content = new byte[length];
    try (FSDataInputStream in = path.getFileSystem(conf).open(path)) {
      in.readFully(offset, content);
    }
    return content;
  }

  /** The first of these files below a folder, one per line, that does not exist; null if all exist. */
  public static String missing(FileSystem files, Path folder, String lines) throws IOException {
    if (lines.isEmpty()) return null;
    String[] names = lines.split("\n");
    List<Future<Boolean>> asked = new ArrayList<>();
    for (String name : names) asked.add(ASKING.submit(() -> files.exists(new Path(folder, name))));
    try {
      for (int i = 0; i < names.length; i++) if (!asked.get(i).get()) return names[i];
      return null;
    } catch (ExecutionException failed) {
      throw failed.getCause() instanceof IOException told ? told : new IOException(failed.getCause());
    } catch (InterruptedException ended) {
      throw new InterruptedIOException();
    }
  }

  /** The names of a folder's files, one per line; empty if there is no such folder. */
  public static String names(FileSystem files, Path folder) throws IOException {
    StringBuilder names = new StringBuilder();
    try {
      for (FileStatus file : files.listStatus(folder)) names.append(file.getPath().getName()).append('\n');
    } catch (FileNotFoundException none) {
      return "";
    }
    return names.toString();
  }

  /**
   * The files that a path or a glob matches, at any depth; null if the path does not exist. The first line is the path with its
   * file system; the others are time of modification (ms), size and URI. A size of -1 marks a folder: the lines up to the next one
   * are its content, or matching files in it. A size of -2 marks a folder above a match that is a Delta table.
   */
  public static String listing(String pattern, Configuration conf) throws IOException {
    Path path = new Path(pattern);
    FileSystem files = path.getFileSystem(conf);
    FileStatus[] matches = files.globStatus(path);
    if (matches == null) return null;
    StringBuilder found = new StringBuilder(files.makeQualified(path).toUri().toString()).append('\n');
    Set<Path> above = new LinkedHashSet<>();
    for (FileStatus match : matches) {
      Path root = match.getPath();
      Path folder = root.getParent();
      while (folder != null && folder.getName().contains("=")) folder = folder.getParent();
      if (folder != null) above.add(folder);
      if (root.getName().equals("_delta_log") || root.getName().equals("_spark_metadata")) continue; // Spark leaves these out, too
      line(found, 0, -1, match.isDirectory() ? root : root.getParent());
      if (match.isDirectory()) {
        RemoteIterator<LocatedFileStatus> below = files.listFiles(root, true);
        while (below.hasNext()) line(found, below.next());
      } else {
        line(found, match);
      }
    }
    for (Path folder : above) {
      try {
        if (files.exists(new Path(folder, "_delta_log"))) line(found, 0, -2, folder);
      } catch (AccessDeniedException | AccessControlException closed) {
        // a reader who has access to the source alone need not look above it
      }
    }
    return found.toString();
  }

  private static void line(StringBuilder found, FileStatus file) {
    line(found, file.getModificationTime(), file.getLen(), file.getPath());
  }

  private static void line(StringBuilder found, long modifiedMs, long size, Path path) {
    found.append(modifiedMs).append(' ').append(size).append(' ').append(path.toUri()).append('\n');
  }

  /**
   * Which of these methods a class lacks; `<init>` is a constructor.
   *
   * @param methods one per line: name and number of parameters
   */
  public static String lacking(String name, String methods, ClassLoader loader) throws ClassNotFoundException {
    Class<?> found = Class.forName(name, false, loader);
    Set<String> lacking = new LinkedHashSet<>(methods.lines().toList());
    for (Method method : found.getMethods()) lacking.remove(method.getName() + "/" + method.getParameterCount());
    for (Constructor<?> one : found.getConstructors()) lacking.remove("<init>/" + one.getParameterCount());
    return String.join("\n", lacking);
  }

  private static Thread daemon(Runnable work) {
    Thread thread = new Thread(work, "lakegate-asking");
    thread.setDaemon(true);
    return thread;
  }
}
