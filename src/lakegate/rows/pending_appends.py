"""Appends of this driver that are written and not committed yet: later statements may be rebased on them in advance.

This speculation costs only time: its result is used only if the log shows exactly these appends.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lakegate.delta.actions import Body, Captured
from lakegate.ids import TableLocation


@dataclass(frozen=True, slots=True)
class Announced:
    """An append that a job is going to commit."""

    batch: int
    adds: Mapping[str, Body]
    """Path → `add` of each file."""


class PendingAppends:
    """Pending appends by table and job; one at a time of each. Safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._announced: dict[TableLocation, dict[str, Announced]] = {}

    def announce(self, table: TableLocation, job: str, batch: int, commit: Captured) -> None:
        """Replaces the job's earlier announcement; announces no files if the commit does more than append."""
        is_append = all(action.kind == "add" for action in commit.actions)
        adds = {action.body["path"]: action.body for action in commit.actions} if is_append else {}
        with self._guard:
            self._announced.setdefault(table, {})[job] = Announced(batch, adds)

    def withdraw(self, table: TableLocation, job: str) -> None:
        """Removes an announcement: the append is committed, or will not be."""
        with self._guard:
            self._announced.get(table, {}).pop(job, None)

    def of(self, table: TableLocation, job: str) -> Announced | None:
        """Returns a job's pending append."""
        with self._guard:
            return self._announced.get(table, {}).get(job)

    def adds(self, table: TableLocation, jobs: Collection[str] | None = None) -> dict[str, Body]:
        """Returns path → `add` of each file that these jobs, or all jobs, are going to commit."""
        with self._guard:
            by_job = self._announced.get(table, {})
            ours = [one for job, one in by_job.items() if jobs is None or job in jobs]
            return {path: add for one in ours for path, add in one.adds.items()}
