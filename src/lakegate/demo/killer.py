"""Ends a job with `kill -9` between its append and its checkpoint."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from lakegate.delta.commit_file import commit_info
from lakegate.demo.lake import Commits
from lakegate.errors import LakegateError

KILL_AT_APPEND = 2
"""The job is killed when its append of this number is in the table's log, counted from 1."""
POLL_S = 0.003
"""Delta and Spark need some tens of milliseconds or more from the commit to the end of the micro-batch."""
APPEND = "WRITE"
"""Delta's name for an append in the log; no other job of the demo appends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """The killed process, and the time."""

    pid: int
    at_ms: int


class Killer:
    """Watches the log of a table, and kills once."""

    def __init__(self, commits: Commits, pid: Callable[[], int | None], reported: Callable[[Killed], None]) -> None:
        """Prepares the killer.

        Args:
            commits: The log to watch.
            pid: The job's Python process; None if it is not running: then nothing is killed.
            reported: Called after the kill, in the watching thread.
        """
        self._commits, self._pid, self._on_kill = commits, pid, reported
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="killer", daemon=True)
        self.killed: Killed | None = None

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        seen = appends = 0
        while not self._stop.wait(POLL_S):
            names = self._commits.names()
            for name in names[seen:]:
                appends += commit_info(self._commits.text(name)).get("operation") == APPEND
            seen = len(names)
            try:
                pid = self._pid() if appends >= KILL_AT_APPEND else None
            except LakegateError:  # a busy store of turns: the next look comes in milliseconds
                continue
            if pid is None:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.killed = Killed(pid=pid, at_ms=time.time_ns() // 1_000_000)
            self._on_kill(self.killed)
            return
