package org.apache.spark.sql.catalyst.plans.logical;

public interface DeltaMergeIntoMatchedClause extends DeltaMergeIntoClause {
}
