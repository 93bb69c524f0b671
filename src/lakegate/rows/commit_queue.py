"""The queue of a driver's statements that wait for a table's next version."""

from __future__ import annotations

import threading
from typing import Any, Protocol, TypeVar


class Queued(Protocol):
    """A statement in the queue."""

    @property
    def reply(self) -> object:
        """The statement's end in a group commit; None as long as it waits."""


Q = TypeVar("Q", bound=Queued)


class CommitQueue:
    """The statements of one driver that are going to commit to a table."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held during a commit. After a lost commit also held during the rebase, so that the statement cannot lose again to this
        driver."""
        self._entries: list[Any] = []
        self._guard = threading.Lock()

    def enter(self, entry: Queued) -> None:
        """Queues a statement for the next version."""
        with self._guard:
            self._entries.append(entry)

    def leave(self, entry: Queued) -> None:
        """Removes a statement from the queue."""
        with self._guard:
            if entry in self._entries:
                self._entries.remove(entry)

    def __len__(self) -> int:
        """Returns the number of statements that wait to be committed, or to receive their reply."""
        with self._guard:
            return len(self._entries)

    def first(self, entry: Q, number_max: int) -> list[Q]:
        """Returns at most this many waiting statements, this one first.

        A statement that has its reply stays in the queue until its thread runs again; it must not be committed a second time.
        """
        with self._guard:
            others = [one for one in self._entries if one is not entry and one.reply is None]
            return [entry, *others[: number_max - 1]]
