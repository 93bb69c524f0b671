package io.github.lakegate.quick;

import java.util.Set;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.RowTracking$;
import org.apache.spark.sql.delta.files.TransactionalWrite$;

/** The tables that are served: by their features, and by settings that let stock Delta write in another way. */
final class Served {
  /** A feature that is not among these may need work in a statement that is not done here. */
  private static final Set<String> FEATURES =
      Set.of(
          "allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection", "clustering",
          "columnMapping", "deletionVectors", "domainMetadata", "generatedColumns", "identityColumns", "inCommitTimestamp",
          "invariants", "materializePartitionColumns", "rowTracking", "timestampNtz", "typeWidening", "typeWidening-preview",
          "v2Checkpoint", "vacuumProtocolCheck");

  private Served() {}

  static void check(OptimisticTransaction txn, boolean writesRows) {
    for (String feature : QuickStatement.list(txn.protocol().readerAndWriterFeatureNames())) {
      if (!FEATURES.contains(feature)) throw new QuickStatement.Declined("its table has the feature " + feature);
    }
    if (!writesRows) return;
    if (RowTracking$.MODULE$.isEnabled(txn.protocol(), txn.metadata())) throw new QuickStatement.Declined("its table tracks rows");
    if (TransactionalWrite$.MODULE$.shouldOptimizeWrite(txn.metadata(), txn.spark().sessionState().conf())) {
      throw new QuickStatement.Declined("its table optimizes what is written");
    }
  }
}
