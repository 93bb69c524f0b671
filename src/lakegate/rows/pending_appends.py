"""Appends of this driver that are written and not put yet: who comes after them may follow them already, or count on them.

It is a guess that costs time only: what has come of such an append is used if the log shows just this.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lakegate.delta.actions import Body, Captured
from lakegate.ids import TableLocation


@dataclass(frozen=True, slots=True)
class Announced:
    """What a job will put."""

    batch: int
    adds: Mapping[str, Body]
    """Path → `add` of each file."""


class Coming:
    """By table, and by the job that will put them; one at a time of each. Safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._announced: dict[TableLocation, dict[str, Announced]] = {}

    def announce(self, table: TableLocation, job: str, batch: int, commit: Captured) -> None:
        """In place of what the job has announced before; nothing where the commit does anything else than append."""
        is_append = all(action.kind == "add" for action in commit.actions)
        adds = {action.body["path"]: action.body for action in commit.actions} if is_append else {}
        with self._guard:
            self._announced.setdefault(table, {})[job] = Announced(batch, adds)

    def withdraw(self, table: TableLocation, job: str) -> None:
        """It is put, or will not be."""
        with self._guard:
            self._announced.get(table, {}).pop(job, None)

    def of(self, table: TableLocation, job: str) -> Announced | None:
        """What one job will put."""
        with self._guard:
            return self._announced.get(table, {}).get(job)

    def adds(self, table: TableLocation, jobs: Collection[str] | None = None) -> dict[str, Body]:
        """Path → `add` of each file that these jobs will put, or any."""
        with self._guard:
            by_job = self._announced.get(table, {})
            ours = [one for job, one in by_job.items() if jobs is None or job in jobs]
            return {path: add for one in ours for path, add in one.adds.items()}
