package io.github.lakegate;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Put-if-absent on S3 by a table in DynamoDB, for servers without conditional puts and for sites whose other writers use
 * Delta's S3DynamoDBLogStore: entries, names and settings are that store's.
 *
 * <p>A commit is written to a temporary file; its entry, which only one driver can make, decides; then the commit gets its name and
 * the entry is marked complete. A reader or writer that finds an incomplete entry finishes the commit of its driver. A state that
 * cannot be repaired is an error, never "no table": Delta's store then answers version -1, or is refused without end.
 */
public final class DynamoDbLogStore extends HadoopFileSystemLogStore {
  private final Configuration settings;
  private volatile DynamoDbEntries entries;

  public DynamoDbLogStore(Configuration conf) {
    super(conf);
    settings = conf;
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    byte[] content = ConditionalPutLogStore.bytes(actions);
    Path log = path.getParent();
    String name = path.getName();
    if (overwrite) {
      ConditionalPutLogStore.overwrite(files, path, content);
      return;
    }
    if (!isLog(log) || !name.matches("\\d{20}\\.json")) { // entries are of commits alone: the last one is asked for
      if (!place(files, path, content)) throw new FileAlreadyExistsException(path.toString());
      return;
    }
    if (exists(files, path)) throw new FileAlreadyExistsException(path.toString());
    String table = log.getParent().toString();
    DynamoDbEntries of = entries(files);
    long version = Long.parseLong(name.substring(0, 20));
    if (version == 0) requireNew(of, files, log, path);
    else requirePrevious(of, files, log, String.format(Locale.ROOT, "%020d.json", version - 1));
    String aside = ".tmp/" + name + "." + UUID.randomUUID();
    place(files, new Path(log, aside), content); // conditional only because this needs no request beforehand
    if (!of.enter(table, name, aside)) {
      DynamoDbEntries.Entry winner = of.get(table, name);
      boolean isOurs = winner != null && winner.aside().equals(aside); // the client repeats a put whose answer was lost
      if (!isOurs) {
        if (winner != null && winner.isComplete() && !exists(files, path)) throw isMissing(of, path);
        throw new FileAlreadyExistsException(path.toString());
      }
    }
    boolean isPlaced;
    try {
      isPlaced = place(files, path, content);
      if (isPlaced) of.complete(table, name, aside);
    } catch (IOException recoverable) {
      return; // the entry exists, so the commit is made: the next reader or writer finishes it
    }
    if (!isPlaced) {
      of.withdraw(table, name, aside);
      throw isForeign(of, path);
    }
  }

  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    Path log = path.getParent();
    if (!isLog(log)) return super.listFrom(path, conf);
    FileSystem files = path.getFileSystem(conf);
    DynamoDbEntries of = entries(files);
    DynamoDbEntries.Entry last = of.last(log.getParent().toString());
    if (last != null && !last.isComplete()) recover(of, files, log, last);
    Iterator<FileStatus> found = super.listFrom(path, conf);
    if (last == null || last.name().compareTo(path.getName()) < 0) return found;
    List<FileStatus> all = new ArrayList<>();
    String newest = "";
    while (found.hasNext()) {
      all.add(found.next());
      String name = all.get(all.size() - 1).getPath().getName();
      if (name.matches("\\d{20}\\.json")) newest = name; // names are in order
    }
    if (!newest.isEmpty() && newest.compareTo(last.name()) < 0) throw isMissing(of, new Path(log, last.name()));
    return all.iterator();
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }

  /**
   * Describes for a person what is wrong with a table's entries; empty if nothing is. With `isMended` it is repaired: a commit that can
   * be restored is; an entry whose commit cannot is removed; a commit without an entry gets one.
   */
  public String examine(Path table, boolean isMended, Configuration conf) throws IOException {
    FileSystem files = table.getFileSystem(conf);
    Path log = new Path(table, "_delta_log");
    DynamoDbEntries of = entries(files);
    String newest = newest(files, log);
    DynamoDbEntries.Entry last = of.last(table.toString());
    if (last == null) return "";
    Path version = new Path(log, last.name());
    byte[] aside = ConditionalPutLogStore.read(files, new Path(log, last.aside()));
    byte[] there = ConditionalPutLogStore.read(files, version);
    if (newest.isEmpty()) {
      for (DynamoDbEntries.Entry left = last; isMended && left != null; left = of.last(table.toString())) of.remove(table.toString(), left.name());
      return "entries are left of a table that was deleted; the last is " + last.name();
    }
    if (there == null && newest.compareTo(last.name()) < 0) {
      if (aside == null && isMended) of.remove(table.toString(), last.name());
      if (aside != null && isMended) recover(of, files, log, last);
      return "commit " + last.name() + " has " + (last.isComplete() ? "a complete" : "an incomplete") + " entry and is not there; what was put aside for it " + (aside == null ? "is gone: it cannot come back" : "is there: it can come back");
    }
    if (there != null && aside != null && !java.util.Arrays.equals(aside, there)) {
      if (isMended) of.complete(table.toString(), last.name(), last.name()); // there is no temporary file, only the commit itself
      return "commit " + last.name() + " is another writer's than its entry's; what the entry's writer put aside is kept in _delta_log/" + last.aside();
    }
    if (newest.compareTo(last.name()) > 0 && of.isFresh(last)) {
      if (isMended) of.complete(table.toString(), newest, newest);
      return "commits after " + last.name() + " up to " + newest + " were made without entries: by a writer with another log store, table or region";
    }
    return "";
  }

  private static String newest(FileSystem files, Path log) throws IOException {
    String newest = "";
    for (String name : Bulk.names(files, log).split("\n")) {
      if (name.matches("\\d{20}\\.json") && name.compareTo(newest) > 0) newest = name;
    }
    return newest;
  }

  /** No entries of an earlier table may be left: they would refuse versions to the new one. */
  private static void requireNew(DynamoDbEntries of, FileSystem files, Path log, Path path) throws IOException {
    DynamoDbEntries.Entry last = of.last(log.getParent().toString());
    if (last == null) return;
    boolean isUnderWay = !last.isComplete() && last.name().equals(path.getName());
    if (isUnderWay || exists(files, path)) throw new FileAlreadyExistsException(path.toString());
    throw of.fault("entries of a table that was deleted are left for " + log.getParent() + " (the last is " + last.name() + ")", "lakegate doctor --table " + log.getParent() + " --repair");
  }

  /** The version before must be complete, as readers look at the last entry alone; and made by writers that make entries. */
  private static void requirePrevious(DynamoDbEntries of, FileSystem files, Path log, String name) throws IOException {
    DynamoDbEntries.Entry previous = of.get(log.getParent().toString(), name);
    if (previous != null) {
      if (!previous.isComplete()) recover(of, files, log, previous);
      return;
    }
    // No entry: the first commit with entries, or the entries have expired, or another writer made none.
    DynamoDbEntries.Entry last = of.last(log.getParent().toString());
    if (last != null && last.name().compareTo(name) < 0 && of.isFresh(last)) throw isForeign(of, new Path(log, name));
  }

  private static void recover(DynamoDbEntries of, FileSystem files, Path log, DynamoDbEntries.Entry entry) throws IOException {
    Path version = new Path(log, entry.name());
    byte[] content = ConditionalPutLogStore.read(files, new Path(log, entry.aside()));
    if (content == null) {
      if (!exists(files, version)) throw of.fault("commit " + version + " was begun, and what it wrote aside (" + entry.aside() + ") is gone", "lakegate doctor --table " + log.getParent());
    } else if (!place(files, version, content)) { // compares the existing content
      throw isForeign(of, version);
    }
    of.complete(log.getParent().toString(), entry.name(), entry.aside());
  }

  private static IOException isMissing(DynamoDbEntries of, Path version) {
    return of.fault("commit " + version + " is complete by its entry, and is not there", "lakegate doctor --table " + version.getParent().getParent());
  }

  private static IOException isForeign(DynamoDbEntries of, Path version) {
    return of.fault(version + " was written without an entry: by a writer with another log store, table or region", "Stop that writer; then: lakegate doctor --table " + version.getParent().getParent());
  }

  /** The same as {@link ConditionalPutLogStore#put}; if the server has no conditional put, a plain put, as the entry has decided. */
  private static boolean place(FileSystem files, Path path, byte[] content) throws IOException {
    try {
      return ConditionalPutLogStore.put(files, path, content);
    } catch (IOException error) {
      if (ConditionalPutLogStore.status(error) != 501) throw error;
      ConditionalPutLogStore.overwrite(files, path, content);
      return true;
    }
  }

  private static boolean exists(FileSystem files, Path path) throws IOException {
    try (FSDataInputStream there = files.open(path)) { // one HEAD request; exists() would look for a folder, too
      return there != null;
    } catch (FileNotFoundException none) {
      return false;
    }
  }

  private static boolean isLog(Path folder) {
    return folder.getName().equals("_delta_log");
  }

  private DynamoDbEntries entries(FileSystem files) throws IOException {
    if (entries == null) entries = DynamoDbEntries.of(files, settings);
    return entries;
  }
}
