"""The commits of a target, counted: a test says what happens before and after each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from lakegate.syncs.targets.connections import Connections

When = Literal["before", "after"]


class Ended(BaseException):
    """The process is over: nothing that comes after it is committed."""


class _Counted:
    """A connection that reports its commits."""

    def __init__(self, connection: Any, commit: Callable[[Callable[[], None]], None]) -> None:
        self._connection, self._commit = connection, commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Between the two tellings."""
        self._commit(self._connection.commit)


@contextlib.contextmanager
def counted(told: Callable[[int, When], None]) -> Iterator[Callable[[], int]]:
    """Tells of each commit of all targets of this process, numbered from 1; yields how many there were."""
    count, lock, lend = [0], threading.Lock(), Connections.lend

    def commit(really: Callable[[], None]) -> None:
        with lock:
            count[0] += 1
            number = count[0]
        told(number, "before")
        really()
        told(number, "after")

    @contextlib.contextmanager
    def watched(self: Connections) -> Iterator[Any]:
        with lend(self) as connection:
            yield _Counted(connection, commit)

    Connections.lend = watched  # the place where each commit passes
    try:
        yield lambda: count[0]
    finally:
        Connections.lend = lend
