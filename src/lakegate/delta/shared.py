"""What the statements of one driver share."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from lakegate.core.ids import TableLocation
from lakegate.delta import exact, overlay
from lakegate.delta.coming import Coming
from lakegate.delta.files import Remembered
from lakegate.delta.gate import Gate
from lakegate.delta.line import Afterwards, Line


class Shared:
    """Of one JVM. Safe to use from several threads."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm = exact.private(spark)
        self.gate = Gate(spark)
        self.afterwards = Afterwards()
        self.coming = Coming()
        self.remembered = Remembered()
        self._lines: dict[str, Line] = {}
        self._swept_at_s: dict[str, float] = {}
        self._guard = threading.Lock()

    def line(self, table: TableLocation) -> Line:
        """Of a table."""
        with self._guard:
            return self._lines.setdefault(table, Line())

    def sweep(self, table: TableLocation, root: Any) -> None:
        """Has what killed processes left below a table removed: by and by, and no sooner again than more can be old enough."""
        with self._guard:
            last_s, now_s = self._swept_at_s.get(table), time.monotonic()
            if last_s is not None and now_s - last_s < overlay.ABANDONED_AFTER_S:
                return
            self._swept_at_s[table] = now_s
        self.afterwards(lambda: partial(overlay.sweep, self.jvm, root))
