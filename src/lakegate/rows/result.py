"""How a statement got into its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakegate.rows.transaction import Outcome

ROWS = {
    "num_updated_rows": ("numUpdatedRows", "numTargetRowsUpdated"),
    "num_deleted_rows": ("numDeletedRows", "numTargetRowsDeleted"),
    "num_inserted_rows": ("numTargetRowsInserted", "numOutputRows"),
}
"""Column of a stock result → metrics of the table's history that say the same."""


@dataclass(frozen=True)
class Result:
    """What a statement did, and what it took.

    Beside stock Delta's own result, which is `returned`.
    """

    version: int | None
    """Of its commit; None: nothing to change, or `is_superseded`."""
    is_superseded: bool
    """It was left out: its transaction id is in the table with an equal or larger number, as of the same statement before."""
    level: int
    """0: the stock commit. 1: the same actions, later. 2: with deletion vectors of both. 3: executed again on some files.
    4: executed again. 5: executed again while the table was reserved for it."""
    attempts: int
    """Executions, those on some files included."""
    lost_puts: int
    """Commits of it that others were faster than, after the first one."""
    reasons: tuple[str, ...]
    """Why it was executed again, each time."""
    rows_read: int
    """Rows that were read again to see whether they concern it."""
    waited_ms: int
    """For other statements of this driver."""
    publish_ms: float
    """From reading what others committed to the end of the put, where it lost the race; without `waited_ms`."""
    held_ms: float
    """So long of it other statements of this driver waited for this one."""
    returned: Any = field(repr=False)
    """What stock Delta returned; None if its own commit was not put."""
    _info: Callable[[], Mapping[str, Any]] = field(repr=False)

    @cached_property
    def metrics(self) -> Mapping[str, int]:
        """`operationMetrics` of its commit, read from the log at first use."""
        said = self._info().get("operationMetrics") or {}
        return {name: int(value) for name, value in said.items() if str(value).lstrip("-").isdigit()}

    @property
    def rows(self) -> int:
        """Rows that it updated, deleted and inserted."""
        return sum(self._count(column) for column in ROWS)

    @property
    def files(self) -> tuple[int, int]:
        """Data files that it added, and removed."""
        added = self.metrics.get(
            "numAddedFiles", self.metrics.get("numTargetFilesAdded", self.metrics.get("numFiles", 0))
        )
        return added, self.metrics.get("numRemovedFiles", self.metrics.get("numTargetFilesRemoved", 0))

    def counted(self, spark: SparkSession) -> DataFrame:
        """One row as stock MERGE returns it: affected, updated, deleted and inserted rows."""
        counts = [self._count(column) for column in ROWS]
        columns = ", ".join(f"{name} long" for name in ("num_affected_rows", *ROWS))
        return spark.createDataFrame([(sum(counts), *counts)], columns)

    def _count(self, column: str) -> int:
        return next((self.metrics[name] for name in ROWS[column] if name in self.metrics), 0)


def told(frame: DataFrame, result: Result) -> DataFrame:
    """A stock result that says how it came about, as its attribute `lakegate`."""
    frame.__dict__["lakegate"] = result
    return frame


def result_of(outcome: Outcome, read_info: Callable[[int], Mapping[str, Any]]) -> Result:
    """Of what publishing says; the commit is read when it is asked for."""
    published = outcome.published
    version = published.version

    def info() -> Mapping[str, Any]:
        if version is None:
            return {}
        return outcome.info if outcome.info is not None else read_info(version)

    return Result(
        version=version,
        is_superseded=published.is_superseded,
        level=published.level,
        attempts=published.executions,
        lost_puts=published.lost_puts,
        reasons=published.reasons,
        rows_read=outcome.rows_read,
        waited_ms=outcome.waited_ms,
        publish_ms=outcome.publish_ms,
        held_ms=outcome.held_ms,
        returned=outcome.returned,
        _info=info,
    )
