package io.github.lakegate;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Put-if-absent on S3 across drivers: one PUT with {@code If-None-Match: *}, which the server refuses with 412 if the version
 * exists. Delta's own store looks first and puts afterwards, so that one of two drivers can overwrite the other's commit.
 * Needs Hadoop 3.4.2; an older one refuses the option, and nothing is written.
 *
 * <p>Before the first commit to a bucket, a test request checks that the server does refuse.
 */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final int ATTEMPTS_MAX = 6;
  private static final long FIRST_PAUSE_MS = 50; // doubled each time: 1.6 s in all, several round trips to any region
  private static final Set<String> PROVEN = ConcurrentHashMap.newKeySet(); // buckets

  public ConditionalPutLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    byte[] content = bytes(actions);
    if (overwrite) {
      overwrite(files, path, content);
      return;
    }
    prove(files, path);
    if (!put(files, path, content)) throw new FileAlreadyExistsException(path.toString());
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }

  /**
   * True if the file now has our content; false: another writer's. Our own put may be answered with "taken", because the client
   * repeats a put whose answer was lost: so the content is compared. Each commit has a unique id.
   */
  public static boolean put(FileSystem files, Path path, byte[] content) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        fill(created(files, path), content);
      } catch (org.apache.hadoop.fs.FileAlreadyExistsException taken) {
        return isOurs(files, path, content);
      } catch (IOException error) {
        int status = status(error);
        if (status != 412 && status != 409) throw error;
        byte[] found = read(files, path);
        if (found != null) return Arrays.equals(found, content);
        // 409: a put or a deletion of the same key was under way, and S3 asks for another attempt.
        if (attempt == ATTEMPTS_MAX) throw error;
        Gate.pause(FIRST_PAUSE_MS << (attempt - 1));
        continue;
      }
      return true;
    }
  }

  static void overwrite(FileSystem files, Path path, byte[] content) throws IOException {
    fill(files.create(path, true), content);
  }

  /** Closing writes the content that has arrived, even a part of it, for example if the disk of the buffer is full. */
  private static void fill(FSDataOutputStream out, byte[] content) throws IOException {
    try {
      out.write(content);
    } catch (IOException | RuntimeException incomplete) {
      out.abort();
      throw incomplete;
    }
    out.close();
  }

  /** A file's bytes, or null. */
  static byte[] read(FileSystem files, Path path) throws IOException {
    try (InputStream in = files.open(path)) {
      return in.readAllBytes();
    } catch (FileNotFoundException none) {
      return null;
    }
  }

  static byte[] bytes(Iterator<String> lines) throws IOException {
    ByteArrayOutputStream all = new ByteArrayOutputStream();
    while (lines.hasNext()) all.write((lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
    return all.toByteArray();
  }

  /** The HTTP status with which a call failed, without naming a class of the client; 0 if there was no answer. */
  public static int status(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      try {
        return (Integer) cause.getClass().getMethod("statusCode").invoke(cause);
      } catch (ReflectiveOperationException | ClassCastException noStatus) {
        continue;
      }
    }
    return 0;
  }

  private static boolean isOurs(FileSystem files, Path path, byte[] content) throws IOException {
    return Arrays.equals(read(files, path), content);
  }

  private static FSDataOutputStream created(FileSystem files, Path path) throws IOException {
    try {
      // must, not opt: a file system that does not know the option then refuses it instead of ignoring it.
      return (FSDataOutputStream) files.createFile(path).overwrite(false).recursive().must(CONDITIONAL, true).build();
    } catch (IllegalArgumentException unknown) {
      throw new IOException("lakegate: " + files.getUri() + " has no conditional create (Hadoop 3.4.2 on S3 has); nothing was written", unknown);
    }
  }

  static void prove(FileSystem files, Path path) throws IOException {
    String bucket = files.getUri().toString();
    if (PROVEN.contains(bucket)) return;
    // Next to the versions, because we may write there. Delta does not see names with a dot.
    Path scratch = new Path(path.getParent(), ".lakegate-probe-" + UUID.randomUUID());
    try {
      boolean isFirst = put(files, scratch, new byte[] {1});
      if (!isFirst || put(files, scratch, new byte[] {2})) {
        throw new IOException("lakegate: the server of " + bucket + " does not refuse a second writer (it ignores If-None-Match), so what one writes another would replace; nothing was written. For commits use log_store: dynamodb; keep checkpoints elsewhere");
      }
      PROVEN.add(bucket);
    } finally {
      try {
        files.delete(scratch, false);
      } catch (IOException mayNotDelete) {
        // A file of one byte stays, which is harmless.
      }
    }
  }
}
