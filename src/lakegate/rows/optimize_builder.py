"""The builder of an OPTIMIZE that is rebased on concurrent commits instead of failing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import delta.tables as stock
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lakegate.ids import TableLocation
from lakegate.rows.explain import Explanation, explain
from lakegate.rows.result import with_result
from lakegate.rows.statement import relocation
from lakegate.rows.thread_scope import run


class DeltaOptimizeBuilder(stock.DeltaOptimizeBuilder):
    """Builds an OPTIMIZE. Source: `delta.tables.DeltaOptimizeBuilder`."""

    def __init__(self, spark: SparkSession, jbuilder: Any, table: TableLocation) -> None:
        super().__init__(spark, jbuilder)
        self._table = table

    def where(self, partitionFilter: str) -> DeltaOptimizeBuilder:
        """Limits the OPTIMIZE to partitions.

        Args:
            partitionFilter: A condition of partition columns alone, as SQL text.

        Returns:
            The builder.

        Source: `delta.tables.DeltaOptimizeBuilder.where`.
        """
        return DeltaOptimizeBuilder(self._spark, super().where(partitionFilter)._jbuilder, self._table)

    def executeCompaction(self) -> DataFrame:
        """Compacts small files.

        Returns:
            The stock metrics: one row, with a `Result` as its attribute `lakegate`.

        Source: `delta.tables.DeltaOptimizeBuilder.executeCompaction`.
        """
        return self._run(super().executeCompaction)

    def executeZOrderBy(self, *cols: str | list[str] | tuple[str, ...]) -> DataFrame:
        """Writes the files again, sorted along a Z-order curve.

        Args:
            cols: Names of columns, which must not be partition columns.

        Returns:
            The stock metrics: one row, with a `Result` as its attribute `lakegate`.

        Example:
            ```python
            people.optimize().executeZOrderBy("country", "city")
            ```

        Source: `delta.tables.DeltaOptimizeBuilder.executeZOrderBy`.
        """
        stocks: Any = super()
        return self._run(lambda: stocks.executeZOrderBy(*cols))

    def explain(self) -> Explanation:
        """Explains what a concurrent commit means for the OPTIMIZE, whatever its sort order; executes nothing."""
        return explain(relocation(self._spark, self._table, super().executeCompaction))

    def _run(self, execute: Callable[[], DataFrame]) -> DataFrame:
        return optimized(self._spark, self._table, execute)


def optimized(spark: SparkSession, table: TableLocation, execute: Callable[[], object]) -> DataFrame:
    """Runs an OPTIMIZE that is rebased on concurrent commits; returns the stock result, or its columns from the table's history."""
    result = run(relocation(spark, table, execute))
    frame: DataFrame | None = result.returned
    if frame is None:
        added, removed = result.files
        said = result.metrics.get
        sizes = {"min": said("minFileSize"), "max": said("maxFileSize")} if added else {}
        metrics = {
            "numFilesAdded": added,
            "numFilesRemoved": removed,
            "filesAdded": {**sizes, "totalFiles": added, "totalSize": said("numAddedBytes")},
            "filesRemoved": {"totalFiles": removed, "totalSize": said("numRemovedBytes")},
        }
        frame = spark.createDataFrame([{"path": str(table), "metrics": metrics}], _optimize_schema(spark))
    return with_result(frame, result)


def _optimize_schema(spark: SparkSession) -> StructType:
    """Returns the schema of Delta's result of any OPTIMIZE; all fields may be null, as the history lacks some values."""
    plan: Any = cast("Any", spark)._jsparkSession.sessionState().sqlParser().parsePlan("OPTIMIZE delta.`any`")
    schema = json.loads(plan.schema().json())
    return StructType.fromJson(json.loads(json.dumps(schema).replace('"nullable": false', '"nullable": true')))
