package org.apache.spark.sql.delta;

public interface SnapshotDescriptor {
}
