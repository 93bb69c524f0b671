import java.io.IOException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/** Local disk whose every request takes as long as one to an object store: `slow.ms`, a system property. */
public class SlowFileSystem extends LocalFileSystem {
  private static final long MS = Long.getLong("slow.ms", 0);

  private static void request() {
    try {
      Thread.sleep(MS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  @Override
  public FSDataInputStream open(Path file, int bufferSize) throws IOException {
    request();
    return super.open(file, bufferSize);
  }

  @Override
  public FSDataOutputStream create(
      Path file, FsPermission may, boolean overwrite, int buffer, short copies, long block, Progressable told)
      throws IOException {
    request();
    return super.create(file, may, overwrite, buffer, copies, block, told);
  }

  @Override
  public FileStatus[] listStatus(Path folder) throws IOException {
    request();
    return super.listStatus(folder);
  }

  @Override
  public FileStatus getFileStatus(Path file) throws IOException {
    request();
    return super.getFileStatus(file);
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    request();
    return super.rename(from, to);
  }
}
