"""The queue of a driver's statements that wait for a table's next version."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from lakegate.rows.conflict.effects import InDoubt, Joined, Waiting


class Line:
    """The statements of one driver that are going to commit to a table."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held during a commit. After a lost commit also held during the rebase, so that the statement cannot lose again to this
        driver."""
        self._entries: list[Entry] = []
        self._guard = threading.Lock()

    def enter(self, entry: Entry) -> None:
        """Queues a statement for the next version."""
        with self._guard:
            self._entries.append(entry)

    def leave(self, entry: Entry) -> None:
        """Removes a statement from the queue."""
        with self._guard:
            if entry in self._entries:
                self._entries.remove(entry)

    def __len__(self) -> int:
        """Returns the number of statements that wait to be committed, or to receive their reply."""
        with self._guard:
            return len(self._entries)

    def first(self, entry: Entry, number_max: int) -> list[Entry]:
        """Returns at most this many waiting statements, this one first.

        A statement that has its reply stays in the queue until its thread runs again; it must not be committed a second time.
        """
        with self._guard:
            others = [one for one in self._entries if one is not entry and one.reply is None]
            return [entry, *others[: number_max - 1]]


@dataclass(eq=False)
class Entry:
    """A statement that waits for a version, and its reply."""

    run: Any
    """The `Run` of the statement: reads commits, answers the effects of its rebase, and commits."""
    waiting: Waiting
    reply: Joined | InDoubt | BaseException | None = None
