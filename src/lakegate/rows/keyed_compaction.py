"""Compacts the table of a keyed writer, which adds a small file with each of its statements."""

from __future__ import annotations

import logging
import threading
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from lakegate.errors import summary
from lakegate.ids import TableLocation
from lakegate.rows.delta_table import DeltaTable
from lakegate.rows.result import Result

LOGGER = logging.getLogger("lakegate")


class Compaction:
    """Counts the files that a writer adds, and compacts its table in the background after a number of them.

    OPTIMIZE does not conflict with the statements of the writer: those that lose their commit to it follow the rows that it moved.
    """

    def __init__(self, spark: SparkSession, table: TableLocation, every: int | None) -> None:
        self._session, self._table, self._every = spark.newSession(), table, every
        self._thread: threading.Thread | None = None
        self.files = 0

    def count(self, result: Result) -> None:
        """Counts the files of a statement; begins to compact if they are enough and nothing is being compacted."""
        try:
            self.files += result.files[0]
        except Exception as error:  # the rows are written
            LOGGER.info("the files of version %s were not counted: %s", result.version, summary(error))
        if self._every is None or self.files < self._every or (self._thread is not None and self._thread.is_alive()):
            return
        self.files = 0
        begin: Any = inheritable_thread_target(self._session)
        self._thread = threading.Thread(target=begin(self._compact), name="lakegate-compaction", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for an OPTIMIZE that is running."""
        if self._thread is not None:
            self._thread.join()

    def _compact(self) -> None:
        try:
            DeltaTable.forPath(self._session, self._table).optimize().executeCompaction()
        except Exception as error:
            LOGGER.warning(
                "OPTIMIZE of %s failed, and is tried again after more files: %s", self._table, summary(error)
            )
