package org.apache.spark.sql.execution.columnar;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

public class InMemoryRelation extends LogicalPlan {}
