"""The result of a statement: how it was committed, and what it cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lakegate.notebook import Shown
from lakegate.telemetry.events import StatementPublished

ROWS = {
    "num_updated_rows": ("numUpdatedRows", "numTargetRowsUpdated"),
    "num_deleted_rows": ("numDeletedRows", "numTargetRowsDeleted"),
    "num_inserted_rows": ("numTargetRowsInserted", "numOutputRows"),
}
"""Column of a stock result → metrics of the table's history with the same meaning."""
LOGGER = logging.getLogger("lakegate")
_callbacks: list[Callable[[StatementPublished], None]] = []


@dataclass(frozen=True)
class Result(Shown):
    """The effect and the cost of a statement.

    Stock Delta's own result is in `returned`.
    """

    version: int | None
    """Of its commit; None: nothing to change, or `is_superseded`."""
    is_superseded: bool
    """It was skipped: its transaction id is in the table with an equal or larger number, for example of an earlier run."""
    level: int
    """0: the stock commit. 1: the same actions, later. 2: with merged deletion vectors. 3: executed again on some files.
    4: executed again. 5: executed again while the table was reserved for it."""
    attempts: int
    """Executions, including those on some files."""
    lost_puts: int
    """Its commits that lost to other commits, after the first one."""
    reasons: tuple[str, ...]
    """The reason of each repeated execution."""
    rows_read: int = 0
    """Rows that were read again to test whether they concern it."""
    waited_ms: int = 0
    """Wait for other statements of this driver."""
    publish_ms: float = 0.0
    """From reading the other commits to the end of its own, if its first commit lost; without `waited_ms`."""
    held_ms: float = 0.0
    """The part of it for which other statements of this driver waited for this one."""
    why_stock: str | None = None
    """Why a Spark job executed it; None if the driver did without one."""
    returned: Any = field(default=None, repr=False)
    """Stock Delta's return value; None if the stock commit was not used."""
    _info: Callable[[], Mapping[str, Any]] = field(default=dict, repr=False)

    def _shown(self) -> Mapping[str, object]:
        return {**Shown._shown(self), "metrics": self.metrics}

    @cached_property
    def metrics(self) -> Mapping[str, int]:
        """`operationMetrics` of its commit, read from the log at first use."""
        said = self._info().get("operationMetrics") or {}
        return {name: int(value) for name, value in said.items() if str(value).lstrip("-").isdigit()}

    @property
    def rows(self) -> int:
        """The number of rows that it updated, deleted and inserted."""
        return sum(self._count(column) for column in ROWS)

    @property
    def files(self) -> tuple[int, int]:
        """The number of data files that it added, and removed."""
        added = self.metrics.get(
            "numAddedFiles", self.metrics.get("numTargetFilesAdded", self.metrics.get("numFiles", 0))
        )
        return added, self.metrics.get("numRemovedFiles", self.metrics.get("numTargetFilesRemoved", 0))

    def counted(self, spark: SparkSession) -> DataFrame:
        """Returns a row like that of a stock MERGE: affected, updated, deleted and inserted rows."""
        counts = {column: self._count(column) for column in ROWS}
        shown = {"num_affected_rows": sum(counts.values()), **counts}
        # Created from a list, a data frame takes many calls to the JVM.
        return spark.sql(f"SELECT {', '.join(f'{count}L AS {name}' for name, count in shown.items())}")

    def _count(self, column: str) -> int:
        return next((self.metrics[name] for name in ROWS[column] if name in self.metrics), 0)


def with_result(frame: DataFrame, result: Result) -> DataFrame:
    """Attaches the `Result` to a stock result, as its attribute `lakegate`."""
    frame.__dict__["lakegate"] = result
    return frame


def on_statement(callback: Callable[[StatementPublished], None]) -> Callable[[], None]:
    """Registers a callback for every statement that this process publishes; returns a function that removes it.

    The callback runs in the statement's thread, after its commit; its errors are logged and ignored.
    """
    _callbacks.append(callback)
    return lambda: _callbacks.remove(callback)


def reported(result: Result, table: str, operation: str) -> Result:
    """Passes a statement's result to the callbacks, and returns it."""
    counts = {one.name: getattr(result, one.name) for one in fields(StatementPublished) if hasattr(result, one.name)}
    event = StatementPublished(table=table, operation=operation, **counts)
    LOGGER.debug("%s", event)
    for callback in list(_callbacks):
        try:
            callback(event)
        except Exception:
            LOGGER.exception("a callback for statements failed")
    return result
