package io.github.lakegate.quick;

import java.util.Set;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.files.TransactionalWrite$;

/** The tables that are served: by their features, and by settings that let stock Delta write in another way. */
final class Served {
  /** A feature that is not among these may need work in a statement that is not done here. */
  private static final Set<String> FEATURES =
      Set.of(
          "allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints", "checkpointProtection", "clustering",
          "columnMapping", "deletionVectors", "domainMetadata", "generatedColumns", "identityColumns", "inCommitTimestamp",
          "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck");

  private Served() {}

  static void check(Protocol protocol) {
    for (String feature : QuickStatement.list(protocol.readerAndWriterFeatureNames())) {
      if (!FEATURES.contains(feature)) throw new QuickStatement.Declined("its table has the feature " + feature);
    }
  }

  static void checkWrite(OptimisticTransaction txn) {
    if (TransactionalWrite$.MODULE$.shouldOptimizeWrite(txn.metadata(), txn.spark().sessionState().conf())) {
      throw new QuickStatement.Declined("its table optimizes what is written");
    }
  }
}
