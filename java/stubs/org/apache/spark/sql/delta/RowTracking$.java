package org.apache.spark.sql.delta;

import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
import scala.collection.immutable.Map;

public class RowTracking$ {
  public static final RowTracking$ MODULE$ = null;
  public native Map<String, String> addPreservedRowTrackingTagIfNotSet(SnapshotDescriptor a, Map<String, String> b);
  public native boolean isEnabled(Protocol a, Metadata b);

}
