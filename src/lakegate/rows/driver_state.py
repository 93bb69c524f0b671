"""State that the statements of one driver share."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from lakegate.delta import commit
from lakegate.delta.gate import Gate
from lakegate.delta.open_publishes import OpenPublishes
from lakegate.delta.post_commit import Afterwards
from lakegate.ids import TableLocation
from lakegate.rows import shallow_clone
from lakegate.rows.commit_queue import CommitQueue
from lakegate.rows.pending_appends import PendingAppends
from lakegate.rows.small_file_cache import Remembered


class Shared:
    """The shared state of one JVM. Safe to use from several threads."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm = commit.private(spark)
        self.gate = Gate(spark)
        self.afterwards = Afterwards()
        self.publishes = OpenPublishes(spark, self.jvm, self.afterwards)
        self.pending_appends = PendingAppends()
        self.remembered = Remembered()
        self._lines: dict[str, CommitQueue] = {}
        self._swept_at_s: dict[str, float] = {}
        self._guard = threading.Lock()

    def line(self, table: TableLocation) -> CommitQueue:
        """Returns the commit queue of a table."""
        with self._guard:
            return self._lines.setdefault(table, CommitQueue())

    def sweep(self, table: TableLocation, root: Any) -> None:
        """Removes scratch logs of killed processes below a table, in the background; at most once per minimum age of such a log."""
        with self._guard:
            last_s, now_s = self._swept_at_s.get(table), time.monotonic()
            if last_s is not None and now_s - last_s < shallow_clone.ABANDONED_AFTER_S:
                return
            self._swept_at_s[table] = now_s
        self.afterwards(lambda: partial(shallow_clone.sweep, self.jvm, root))
