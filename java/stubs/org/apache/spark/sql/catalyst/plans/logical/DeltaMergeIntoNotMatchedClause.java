package org.apache.spark.sql.catalyst.plans.logical;

public interface DeltaMergeIntoNotMatchedClause extends DeltaMergeIntoClause {
}
