"""Those of one driver who wait for a table's next version, and what a commit leaves to be done when nobody waits."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from lakegate.rows.conflict.effects import InDoubt, Joined, Waiting


class Line:
    """Those of one driver who want to commit to a table."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held during a commit. After a lost commit also held during the rebase, so that the statement cannot lose again to this
        driver."""
        self._entries: list[Entry] = []
        self._guard = threading.Lock()

    def enter(self, entry: Entry) -> None:
        """Wait for the next version."""
        with self._guard:
            self._entries.append(entry)

    def leave(self, entry: Entry) -> None:
        """No longer."""
        with self._guard:
            if entry in self._entries:
                self._entries.remove(entry)

    def __len__(self) -> int:
        """How many wait to be put, or to be told."""
        with self._guard:
            return len(self._entries)

    def first(self, entry: Entry, number_max: int) -> list[Entry]:
        """So many that wait, this one among them.

        Who has been told how it ended is still there until its thread runs again, and must not be put a second time.
        """
        with self._guard:
            others = [one for one in self._entries if one is not entry and one.reply is None]
            return [entry, *others[: number_max - 1]]


@dataclass(eq=False)
class Entry:
    """A statement that waits for a version, and what it was told."""

    run: Any
    """Of `run.py`: reads commits, answers what its rebase asks, and puts."""
    waiting: Waiting
    reply: Joined | InDoubt | BaseException | None = None
