package org.apache.spark.sql.catalyst.plans.logical;

import org.apache.spark.sql.catalyst.expressions.Expression;

public class DeltaMergeIntoMatchedUpdateClause extends Expression implements DeltaMergeIntoMatchedClause {
}
