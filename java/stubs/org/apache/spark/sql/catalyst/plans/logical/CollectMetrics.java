package org.apache.spark.sql.catalyst.plans.logical;

public class CollectMetrics extends LogicalPlan {}
