"""Detects a network that no longer answers: a statement may wait forever for its answer although TCP looks healthy."""

from __future__ import annotations

import contextlib
import threading
import time

from lakegate.syncs.targets.dialect import Connection, Dialect
from lakegate.syncs.targets.faults import FaultKind

SILENCE_S = 60.0
"""A connection counts as lost if it has been in use for this time and the server accepts no new connection by then."""


class Silence:
    """Watches the connections that are in use. Thread-safe."""

    def __init__(self, dialect: Dialect, silence_s: float = SILENCE_S) -> None:
        self._dialect, self.silence_s = dialect, silence_s
        self._used: dict[int, tuple[Connection, float]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, connection: Connection) -> None:
        """Marks the connection as in use."""
        if not self._dialect.has_network:
            return
        with self._lock:
            self._used[id(connection)] = connection, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="lakegate-silence", daemon=True)
                self._thread.start()

    def end(self, connection: Connection) -> None:
        """Marks the connection as unused."""
        with self._lock:
            self._used.pop(id(connection), None)

    def _watch(self) -> None:
        while True:
            time.sleep(self.silence_s / 4)
            with self._lock:
                if not self._used:
                    self._thread = None
                    return
            if self._long_used() and not self._answers():
                for connection in self._long_used():
                    with contextlib.suppress(OSError, *self._dialect.errors):
                        self._dialect.cut(connection)

    def _long_used(self) -> list[Connection]:
        before = time.monotonic() - self.silence_s / 2
        with self._lock:
            return [connection for connection, since in self._used.values() if since < before]

    def _answers(self) -> bool:
        """Returns whether the server accepts a connection within half of the time. A refusal also counts as an answer."""
        found: list[bool] = []

        def ask() -> None:
            try:
                self._dialect.connect().close()
                found.append(True)
            except self._dialect.errors as error:
                found.append(self._dialect.fault(error).fault is not FaultKind.GONE)

        asking = threading.Thread(target=ask, name="lakegate-silence-ask", daemon=True)
        asking.start()
        asking.join(self.silence_s / 2)
        return any(found)
