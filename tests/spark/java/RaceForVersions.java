import io.delta.storage.LogStore;
import java.io.PrintStream;
import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * One of two processes that try to write the same versions at the same moment. Arguments: store class, folder, own number
 * (0 or 1), versions, lines per version. Prints "won VERSION" for each version that the store acknowledged, and "torn
 * VERSION" where the winner's file was not whole when it became visible.
 */
public class RaceForVersions {
  private static final int SPINS_MAX = 5_000;
  private static final long PAUSE_NS = 50_000;

  public static void main(String[] args) throws Exception {
    String folder = args[1];
    int own = Integer.parseInt(args[2]);
    int versions = Integer.parseInt(args[3]);
    int lines = Integer.parseInt(args[4]);
    Configuration conf = new Configuration();
    LogStore store = (LogStore) Class.forName(args[0]).getConstructor(Configuration.class).newInstance(conf);
    PrintStream out = new PrintStream(new java.io.FileOutputStream(folder + "/writer-" + own + ".txt"), false);
    try (RandomAccessFile file = new RandomAccessFile(folder + "/meeting", "rw")) {
      MappedByteBuffer meeting = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 16);
      for (int version = 0; version < versions; version++) {
        meeting.putInt(own * 8, version + 1);
        // Meet closely when both have a core, and give it up when they share one.
        for (int turn = 0; meeting.getInt((1 - own) * 8) < version + 1; turn++) {
          if (turn < SPINS_MAX) Thread.onSpinWait();
          else LockSupport.parkNanos(PAUSE_NS);
        }
        String name = String.format("%s/_delta_log/%020d.json", folder, version);
        List<String> content = new ArrayList<>();
        for (int line = 0; line < lines; line++) content.add("writer " + own + " line " + line);
        try {
          store.write(new Path("file:" + name), content.iterator(), false, conf);
          out.println("won " + version);
        } catch (FileAlreadyExistsException e) {
          List<String> there = Files.readAllLines(Paths.get(name));
          String other = "writer " + (1 - own) + " line " + (lines - 1);
          if (there.size() != lines || !there.get(lines - 1).equals(other)) out.println("torn " + version);
        } catch (Throwable e) {
          meeting.putInt(own * 8, Integer.MAX_VALUE); // so that the other does not wait for us
          out.close();
          throw e;
        }
      }
    }
    out.println("end");
    out.close();
  }
}
