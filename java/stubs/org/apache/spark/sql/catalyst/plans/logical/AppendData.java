package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import scala.collection.immutable.Map;

public class AppendData extends LogicalPlan {
  public native LogicalPlan query();
  public native NamedRelation table();
  public native Map<String, String> writeOptions();
}
