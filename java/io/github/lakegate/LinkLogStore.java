package io.github.lakegate;

import io.delta.storage.HDFSLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * Put-if-absent on local disk across processes: a private file is written whole, then link(2) gives it the version's
 * name, which fails if the name exists. Delta's own store looks first and renames afterwards, so two processes can both
 * get the answer that they wrote one version. Reading, listing and overwriting are inherited;
 * isPartialWriteVisible too (true: it concerns the file system, and makes Delta write checkpoints to a temporary file and rename).
 */
public final class LinkLogStore extends HDFSLogStore {
  public LinkLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
    if (overwrite) {
      super.write(path, actions, true, conf);
      return;
    }
    java.nio.file.Path version = Paths.get(path.toUri().getPath());
    if (Files.exists(version)) throw new FileAlreadyExistsException(path.toString());
    // The leading dot hides files left by a crash: Delta neither lists nor parses them, and VACUUM skips them.
    java.nio.file.Path aside = version.resolveSibling("." + version.getFileName() + "." + UUID.randomUUID() + ".tmp");
    try {
      try (var out = Files.newBufferedWriter(aside, StandardCharsets.UTF_8)) {
        while (actions.hasNext()) out.append(actions.next()).append('\n');
      }
      // Hadoop's checksum of an earlier file of this name, removed by hand, would make the new one unreadable.
      Files.deleteIfExists(version.resolveSibling("." + version.getFileName() + ".crc"));
      link(version, aside, path);
    } finally {
      aside.toFile().delete(); // never throws: once linked, the commit is made
    }
  }

  private static void link(java.nio.file.Path version, java.nio.file.Path aside, Path path) throws IOException {
    try {
      Files.createLink(version, aside);
    } catch (FileAlreadyExistsException e) {
      // A network file system may repeat a call whose answer was lost; then the existing name is our own file.
      if (!Files.isSameFile(version, aside)) throw new FileAlreadyExistsException(path.toString());
    } catch (UnsupportedOperationException | FileSystemException e) {
      throw new IOException("no commit: this file system gave no hard link; nothing was written at " + path, e);
    }
  }
}
