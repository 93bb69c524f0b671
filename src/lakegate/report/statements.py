"""The metrics of a process's own statements: statements of `lakegate.DeltaTable` and `lakegate.sql`, counted at their commit.

They are no part of `lakegate metrics`, which reads the files of pipelines: a statement leaves only its commit there.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric as Family

from lakegate.report.metrics import Metric, counter
from lakegate.telemetry.events import StatementPublished

_LABELS = ("table", "operation")
PUBLISHED = Metric(
    name="lakegate_statements",
    kind="counter",
    labels=(*_LABELS, "level"),
    help="Statements that ended, by rebase level; 0: no other commit came first.",
)
ATTEMPTS = Metric(
    name="lakegate_statement_attempts",
    kind="counter",
    labels=_LABELS,
    help="Executions of statements, including those on some files; one each without repetition.",
)
REPEATED = Metric(
    name="lakegate_statement_repeats",
    kind="counter",
    labels=(*_LABELS, "reason"),
    help="Repeated executions, on the table or on some files, by reason.",
)
SUPERSEDED = Metric(
    name="lakegate_statements_superseded",
    kind="counter",
    labels=_LABELS,
    help="Statements that were skipped, because their transaction id was in the table already.",
)
LOST_PUTS = Metric(
    name="lakegate_statement_lost_puts",
    kind="counter",
    labels=_LABELS,
    help="Lost optimistic commits, after the first one.",
)
ROWS_READ = Metric(
    name="lakegate_statement_rows_read",
    kind="counter",
    labels=_LABELS,
    help="Rows that were read again to check whether they concern a statement.",
)
WAITED = Metric(
    name="lakegate_statement_waited_seconds",
    kind="counter",
    labels=_LABELS,
    help="How long statements waited for others of this driver.",
)
PUBLISHING = Metric(
    name="lakegate_statement_publish_seconds",
    kind="counter",
    labels=_LABELS,
    help="From reading the winning commits to the end of the commit, without waits for other statements of this driver.",
)
HELD = Metric(
    name="lakegate_statement_held_seconds",
    kind="counter",
    labels=_LABELS,
    help="The part of that time in which other statements of this driver waited.",
)
STATEMENT_METRICS: Final = (PUBLISHED, ATTEMPTS, REPEATED, SUPERSEDED, LOST_PUTS, ROWS_READ, WAITED, PUBLISHING, HELD)


class StatementMetrics:
    """Counts statements, and exports the counts to a registry of `prometheus_client`. Safe to use from several threads.

    A function for `lakegate.on_statement`, and a collector for `CollectorRegistry.register`.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counts: dict[Metric, Counter[tuple[str, ...]]] = {metric: Counter() for metric in STATEMENT_METRICS}

    def __call__(self, event: StatementPublished) -> None:
        """Counts an event."""
        key = (event.table, event.operation)
        with self._guard:
            self._counts[PUBLISHED][*key, str(event.level)] += 1
            self._counts[ATTEMPTS][key] += event.attempts
            for reason in event.reasons:  # one of the dozen reasons in `rows/conflict/rebase.py`
                self._counts[REPEATED][*key, reason] += 1
            self._counts[SUPERSEDED][key] += event.is_superseded
            self._counts[LOST_PUTS][key] += event.lost_puts
            self._counts[ROWS_READ][key] += event.rows_read
            # Kept in milliseconds, as reported: sums of whole numbers do not drift.
            self._counts[WAITED][key] += event.waited_ms
            self._counts[PUBLISHING][key] += round(event.publish_ms)
            self._counts[HELD][key] += round(event.held_ms)

    def collect(self) -> Iterator[Family]:
        """Yields every metric with its samples, in the order of `STATEMENT_METRICS`."""
        with self._guard:
            counted = [(metric, sorted(counts.items())) for metric, counts in self._counts.items()]
        for metric, samples in counted:
            scale = 1000 if metric in (WAITED, PUBLISHING, HELD) else 1
            yield counter(metric, [(labels, number / scale) for labels, number in samples])
