package org.apache.spark.sql.delta;

import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.hooks.PostCommitHook;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.collection.mutable.ArrayBuffer;

public class OptimisticTransaction {
  public OptimisticTransaction(DeltaLog log, Option<CatalogTable> table, Snapshot snapshot) {}

  public Option<VersionChecksum> incrementallyDeriveChecksum(long version, CurrentTransactionInfo committed) {
    throw new UnsupportedOperationException("stub");
  }

  public boolean isCheckpointNeeded(long version, Snapshot after) {
    throw new UnsupportedOperationException("stub");
  }

  public void readWholeTable() {
    throw new UnsupportedOperationException("stub");
  }

  public DeltaLog deltaLog() {
    throw new UnsupportedOperationException("stub");
  }

  public String txnId() {
    throw new UnsupportedOperationException("stub");
  }

  public ArrayBuffer<PostCommitHook> postCommitHooks() {
    throw new UnsupportedOperationException("stub");
  }

  public long commit(Seq<Action> actions, DeltaOperations.Operation operation, Map<String, String> tags) {
    throw new UnsupportedOperationException("stub");
  }

  public Option<CommittedTransaction> getCommitted() {
    throw new UnsupportedOperationException("stub");
  }
}
