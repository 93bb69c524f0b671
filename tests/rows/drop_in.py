"""A program as users write it, with one changed import: mypy checks that what it gets are Lakegate's classes. Never run."""

from __future__ import annotations

from typing import assert_type

import delta.tables as stock
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakegate import DeltaTable
from lakegate.rows.delta_table import DeltaTableBuilder
from lakegate.rows.merge_builder import DeltaMergeBuilder
from lakegate.rows.optimize_builder import DeltaOptimizeBuilder
from lakegate.rows.result import Result


def tables(spark: SparkSession) -> None:
    """Each way to come by one."""
    assert_type(DeltaTable.forPath(spark, "/t"), DeltaTable)
    assert_type(DeltaTable.forName(spark, "t"), DeltaTable)
    assert_type(DeltaTable.convertToDelta(spark, "parquet.`/t`", "p INT"), DeltaTable)
    assert_type(DeltaTable.create(spark), DeltaTableBuilder)
    begun = DeltaTable.createOrReplace(spark).tableName("t").location("/t").comment("c").property("k", "v")
    columns = begun.addColumn("id", "BIGINT", nullable=False).addColumns(StructType())
    assert_type(columns.partitionedBy("p").execute(), DeltaTable)
    assert_type(DeltaTable.createIfNotExists(spark).clusterBy("a", "b").execute(), DeltaTable)
    assert_type(DeltaTable.replace(spark).location("/t").execute(), DeltaTable)


def statements(table: DeltaTable, source: DataFrame) -> None:
    """Each statement."""
    assert_type(table.delete(), Result)
    assert_type(table.delete(F.col("id") == 1), Result)
    assert_type(table.update("id = 1", {"v": "v + 1"}), Result)
    assert_type(table.update(set={"v": F.lit(1)}), Result)
    merge = table.alias("t").merge(source, "t.id = s.id").withSchemaEvolution()
    assert_type(merge, DeltaMergeBuilder)
    merge = merge.whenMatchedUpdate("s.v > 1", {"v": "s.v"}).whenMatchedUpdate(set={"v": "s.v"}).whenMatchedDelete()
    merge = merge.whenMatchedUpdateAll().whenNotMatchedInsert(values={"v": "s.v"}).whenNotMatchedInsertAll("s.v > 1")
    merge = merge.whenNotMatchedBySourceUpdate(set={"v": "0"}).whenNotMatchedBySourceDelete("t.v = 0")
    assert_type(merge.execute(), DataFrame)
    assert_type(table.optimize().where("p = 1"), DeltaOptimizeBuilder)
    assert_type(table.optimize().executeZOrderBy("a", "b"), DataFrame)
    assert_type(table.optimize().executeCompaction(), DataFrame)


def others(table: DeltaTable) -> None:
    """Checks the types of methods that only stock Delta has."""
    assert_type(table.clone("/c", isShallow=True), DeltaTable)
    assert_type(table.cloneAtVersion(1, "/c"), DeltaTable)
    assert_type(table.cloneAtTimestamp("2026-01-01", "/c"), DeltaTable)
    assert_type(table.restoreToVersion(1), DataFrame)
    assert_type(table.restoreToTimestamp("2026-01-01"), DataFrame)
    assert_type(table.vacuum(168), DataFrame)
    assert_type(table.history(1), DataFrame)
    assert_type(table.detail(), DataFrame)
    assert_type(table.toDF(), DataFrame)
    table.upgradeTableProtocol(3, 7)
    table.addFeatureSupport("deletionVectors")
    table.dropFeatureSupport("deletionVectors", truncateHistory=True)
    table.generate("symlink_format_manifest")
    taken(table)


def taken(table: stock.DeltaTable) -> None:
    """A function that was written for the stock class."""
