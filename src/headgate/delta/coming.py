"""Appends of this driver that are written and not put yet: who comes after them may follow them already.

It is a guess that costs time only: what has followed such an append is used if the log shows just this.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from headgate.core.ids import TableLocation
from headgate.core.rows.actions import Body
from headgate.core.rows.effects import Captured


class Coming:
    """By table, and by the job that will put them; one at a time of each. Safe to use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._adds: dict[TableLocation, dict[str, Mapping[str, Body]]] = {}

    def announce(self, table: TableLocation, job: str, commit: Captured) -> None:
        """In place of what the job has announced before; nothing where the commit does anything else than append."""
        is_append = all(action.kind == "add" for action in commit.actions)
        adds = {action.body["path"]: action.body for action in commit.actions} if is_append else {}
        with self._guard:
            self._adds.setdefault(table, {})[job] = adds

    def withdraw(self, table: TableLocation, job: str) -> None:
        """It is put, or will not be."""
        with self._guard:
            self._adds.get(table, {}).pop(job, None)

    def adds(self, table: TableLocation, jobs: Collection[str] | None = None) -> dict[str, Body]:
        """Path → `add` of each file that these jobs will put, or any."""
        with self._guard:
            by_job = self._adds.get(table, {})
            return {
                path: add for job, adds in by_job.items() if jobs is None or job in jobs for path, add in adds.items()
            }
