"""Keeps a session's lease alive, and knows when it may have ended: the holder fences itself before others may take over.

The deadline is counted from the *sending* of the last heartbeat that was answered, on a clock that never goes back: at
`SELF_FENCE` of the lease nobody else may count us as dead yet, whatever the network did to the answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headgate.errors import LostTurn, Unavailable
from headgate.ports import Clock, StoreSession

SELF_FENCE = 0.8
BEATS_PER_LEASE = 5


class Heartbeat:
    """The lease of one session. With a store that has no lease it only asks whether the session still stands."""

    def __init__(
        self, session: StoreSession, *, lease_s: float | None, clock: Clock, on_lost: Callable[[str], None]
    ) -> None:
        self._session, self._lease_s, self._clock, self._on_lost = session, lease_s, clock, on_lost
        self._lock = threading.Lock()
        self._answered_s = clock.monotonic_s()
        self._lost: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to beat in a thread of its own; nothing to do where there is no lease."""
        if self._lease_s is not None:
            self._thread = threading.Thread(target=self._run, name="headgate-heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def beat(self) -> None:
        """One heartbeat: extends the deadline if it is answered, gives the turn up if the store says that it is gone."""
        sent_s = self._clock.monotonic_s()
        try:
            is_alive = self._session.heartbeat()
        except Unavailable:
            self.check_deadline()
            return
        if not is_alive:
            self._lose("the store says that the session is gone")
        else:
            with self._lock:
                self._answered_s = max(self._answered_s, sent_s)
            self.check_deadline()

    def check_deadline(self) -> None:
        """Gives the turn up if the deadline has passed."""
        left_s = self.left_s()
        if left_s is not None and left_s <= 0:
            self._lose(f"no heartbeat was answered for {SELF_FENCE:.0%} of the lease")

    def left_s(self) -> float | None:
        """Seconds until this process fences itself; None where the store has no lease."""
        if self._lease_s is None:
            return None
        with self._lock:
            return self._answered_s + SELF_FENCE * self._lease_s - self._clock.monotonic_s()

    def check(self) -> None:
        """Raises if the turn may not be ours any more.

        Raises:
            LostTurn: before any further write.
        """
        self.check_deadline()
        if self._lost is None and self._lease_s is None and not self._session.heartbeat():
            self._lose("the session's file is gone")
        if self._lost is not None:
            raise LostTurn(f"the turn was lost: {self._lost}; nothing more was written")

    def _lose(self, reason: str) -> None:
        # Once lost is lost: a later answer belongs to a session that others may already have closed.
        with self._lock:
            if self._lost is not None:
                return
            self._lost = reason
        self._on_lost(reason)

    def _run(self) -> None:
        assert self._lease_s is not None
        while not self._stop.wait(self._lease_s / BEATS_PER_LEASE) and self._lost is None:
            self.beat()
