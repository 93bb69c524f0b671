package io.github.lakegate.quick;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.List;
import java.util.UUID;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.DeletionVectorDescriptor;
import org.apache.spark.sql.delta.actions.RemoveFile;
import org.apache.spark.sql.delta.commands.DeletionVectorWriter;
import org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArrayFormat$;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStore;
import org.apache.spark.sql.delta.storage.dv.DeletionVectorStoreUtils;
import org.apache.spark.sql.delta.storage.dv.HadoopFileSystemDVStore;
import org.apache.spark.sql.delta.util.Utils$;
import scala.Tuple2;

/** Marks the rows that a statement has found as deleted; a file without other rows is removed. */
final class Marks {
  /** A vector of up to this many bytes is kept in the log, and needs no file. */
  private static final int INLINE_MAX = 256;

  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Pattern TIGHT = Pattern.compile("(.*\"tightBounds\"\\s*:\\s*)true(.*)", Pattern.DOTALL); // the last one

  private final OptimisticTransaction txn;
  int added;
  int updated;
  int dropped;
  int removed;
  long removedBytes;
  private DeletionVectorWriter.DeletionVectorMapperContext context;

  Marks(OptimisticTransaction txn) {
    this.txn = txn;
  }

  /** Adds the actions for all files. */
  void add(List<FileRows.Found> found, List<Action> actions) throws IOException {
    long now = System.currentTimeMillis();
    try {
      for (FileRows.Found each : found) {
        AddFile file = each.file;
        if (!file.numPhysicalRecords().isDefined()) throw new QuickStatement.Declined("a file has no statistics");
        boolean had = file.deletionVector() != null;
        each.marked.or(each.matched);
        if (each.marked.cardinality() == (Long) file.numPhysicalRecords().get()) {
          actions.add(file.removeWithTimestamp(now, true));
          removed++;
          removedBytes += file.size();
          if (had) dropped++;
          continue;
        }
        byte[] vector = each.marked.serializeAsByteArray(RoaringBitmapArrayFormat$.MODULE$.Portable());
        DeletionVectorDescriptor descriptor =
            vector.length <= INLINE_MAX
                ? DeletionVectorDescriptor.inlineInLog(vector, each.marked.cardinality())
                : DeletionVectorWriter.storeSerializedBitmap(context(), vector, each.marked.cardinality());
        Tuple2<AddFile, RemoveFile> changed = file.removeRows(descriptor, false, true);
        actions.add(RowFiles.withStatistics(changed._1(), withWideBounds(file.stats())));
        actions.add(changed._2());
        if (had) updated++;
        else added++;
      }
    } finally {
      if (context != null) context.writer().close();
    }
  }

  /**
   * Says that smallest and largest values may be those of marked rows. The text of all values stays as it is: a decimal that became
   * a double may no longer be a bound.
   */
  private static String withWideBounds(String statistics) throws IOException {
    String said = JSON.readTree(statistics).path("tightBounds").asText();
    if (said.equals("false")) return statistics;
    String wide;
    if (said.isEmpty()) wide = "{\"tightBounds\":false," + statistics.substring(statistics.indexOf('{') + 1);
    else wide = TIGHT.matcher(statistics).replaceFirst("$1false$2");
    if (JSON.readTree(wide).path("tightBounds").asText().equals("false")) return wide;
    throw new QuickStatement.Declined("the statistics of a file have another form");
  }

  private DeletionVectorWriter.DeletionVectorMapperContext context() {
    if (context == null) {
      Path root = txn.deltaLog().dataPath();
      DeletionVectorStore store = new HadoopFileSystemDVStore(txn.deltaLog().newDeltaHadoopConf());
      String prefix = Utils$.MODULE$.getRandomPrefix(Utils$.MODULE$.getRandomPrefixLength(txn.metadata()));
      Tuple2<DeletionVectorStoreUtils.Writer, UUID> made = DeletionVectorWriter.createWriter(store, store.pathWithFileSystem(root), prefix);
      context = new DeletionVectorWriter.DeletionVectorMapperContext(store, made._1(), root, made._2(), prefix);
    }
    return context;
  }
}
