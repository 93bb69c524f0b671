package org.apache.spark.sql.catalyst.plans.logical;

public interface DeltaMergeIntoNotMatchedBySourceClause extends DeltaMergeIntoClause {
}
