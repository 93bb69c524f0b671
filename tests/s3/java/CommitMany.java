import io.delta.storage.LogStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.FileAlreadyExistsException;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * One driver of several. Arguments: own name, then settings as key=value. Each line of its input is a class of store, a table
 * and a number of commits; each commit goes to the next version that is free. Answers "ready" at the start, "VERSION content" for each commit that
 * the store acknowledged, and "end" for each line.
 */
public class CommitMany {
  public static void main(String[] args) throws Exception {
    Configuration conf = new Configuration();
    for (int i = 1; i < args.length; i++) conf.set(args[i].split("=", 2)[0], args[i].split("=", 2)[1]);
    new Path("s3a://lake/x").getFileSystem(conf).exists(new Path("s3a://lake/x")); // connected before the race begins
    System.out.println("ready");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] said = line.split(" ");
      LogStore store = (LogStore) Class.forName(said[0]).getConstructor(Configuration.class).newInstance(conf);
      int version = 0;
      for (int commit = 0; commit < Integer.parseInt(said[2]); version++) {
        String content = "{\"commitInfo\":{\"txnId\":\"" + args[0] + "-" + commit + "\"}}";
        Path path = new Path(String.format("%s/_delta_log/%020d.json", said[1], version));
        try {
          store.write(path, List.of(content).iterator(), false, conf);
          System.out.println(version + " " + content);
          commit++;
        } catch (FileAlreadyExistsException taken) {
          store.listFrom(path, conf); // as a driver does that has lost: it looks at what won
        }
      }
      System.out.println("end");
    }
  }
}
