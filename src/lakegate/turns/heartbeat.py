"""Keeps a session's lease alive and fences the holder before the lease can end, that is before another run may take over.

The deadline is counted from the *sending* of the last heartbeat that was answered, on a monotonic clock. Until
`SELF_FENCE` of the lease has passed, no other process may count this run as dead, however late the answers arrive. While the
store is unreachable nothing new is written: the pause ends with the next answered heartbeat, or with the deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakegate.errors import LostTurn, Unavailable
from lakegate.ports import Clock
from lakegate.turns.ports import SessionState, StoreSession

SELF_FENCE = 0.8
BEATS_PER_LEASE = 5
GONE = "the store says that the session is gone"


class Heartbeat:
    """Renews the lease of one session. With a store without leases it only checks that the session still exists.

    Args:
        session: The session to keep alive.
        lease_s: The lease of the store; None if a session ends only with its process.
        clock: Measures the deadlines.
        on_lost: Called once, from any thread, with the reason why the turn is lost.
        on_alive: Called after each answered heartbeat with the number of seconds left from now.
    """

    def __init__(
        self,
        session: StoreSession,
        *,
        lease_s: float | None,
        clock: Clock,
        on_lost: Callable[[str], None],
        on_alive: Callable[[float], None] = lambda left_s: None,
    ) -> None:
        self._session, self._lease_s, self._clock = session, lease_s, clock
        self._on_lost, self._on_alive = on_lost, on_alive
        self._changed = threading.Condition()
        self._answered_s = clock.monotonic_s()
        self._lost: str | None = None
        self._is_paused, self._pauses = False, 0
        self._stop, self._beat_now = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the heartbeat threads; does nothing with a store without leases."""
        self._session.watch(self.on_state)
        if self._lease_s is not None:
            # The count begins at a heartbeat of our own: this process may have been stopped since the session was opened.
            self.beat()
            # Two threads: a store that is slow to fail must not delay the detection of the deadline.
            for name, run in (("heartbeat", self._run), ("deadline", self._guard)):
                self._threads.append(threading.Thread(target=run, name=f"lakegate-{name}", daemon=True))
                self._threads[-1].start()

    def stop(self) -> None:
        """Ends the threads."""
        self._stop.set()
        self._beat_now.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def on_state(self, state: SessionState) -> None:
        """Receives a change of the session's connection from the store. Never blocks, from any thread."""
        if self._stop.is_set():
            return  # the run is ending, and its session with it
        if state == "suspended":
            self._pause()
        elif state == "lost":
            if self._note_lost(GONE):
                self._tell_apart(GONE)  # the calling thread belongs to the store
        else:
            self._beat_now.set()  # writing resumes once the store has confirmed the session

    def beat(self) -> None:
        """Sends one heartbeat: an answer extends the deadline; a session that is gone loses the turn."""
        sent_s = self._clock.monotonic_s()
        with self._changed:
            pauses = self._pauses
        try:
            is_alive = self._session.heartbeat()
        except Unavailable:
            self._pause()
            self.check_deadline()
            return
        if not is_alive:
            self._lose(GONE)
            return
        with self._changed:
            self._answered_s = max(self._answered_s, sent_s)
            if pauses == self._pauses:  # otherwise the connection was lost after this answer
                self._is_paused = False
                self._changed.notify_all()
        self.check_deadline()
        left_s = self.left_s()
        if left_s is not None and self._lost is None:
            self._on_alive(left_s)

    def check_deadline(self) -> None:
        """Loses the turn if the deadline has passed."""
        left_s = self.left_s()
        if left_s is not None and left_s <= 0:
            self._lose(f"no heartbeat was answered for {SELF_FENCE:.0%} of the lease")

    def is_lost(self) -> bool:
        """Returns True if the session may have ended; never waits."""
        self.check_deadline()
        return self._lost is not None

    def left_s(self) -> float | None:
        """Returns the seconds until this process fences itself; None where the store has no lease."""
        if self._lease_s is None:
            return None
        with self._changed:
            return self._answered_s + SELF_FENCE * self._lease_s - self._clock.monotonic_s()

    def check(self) -> None:
        """Returns when writing is allowed; waits while the store is unreachable.

        Raises:
            LostTurn: the turn may be lost; nothing more may be written.
        """
        with self._changed:
            while self._is_paused and self._lost is None:
                left_s = self.left_s()
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(left_s)
        self.check_deadline()
        if self._lost is None and self._lease_s is None and not self._session.heartbeat():
            self._lose("the session's file is gone")
        if self._lost is not None:
            raise LostTurn(f"the turn was lost: {self._lost}; nothing more was written")

    def _pause(self) -> None:
        with self._changed:
            self._is_paused, self._pauses = True, self._pauses + 1

    def _lose(self, reason: str) -> None:
        if not self._note_lost(reason):
            return
        if threading.current_thread() in self._threads:
            self._tell_apart(reason)  # `stop` waits for this thread
        else:
            self._on_lost(reason)

    def _tell_apart(self, reason: str) -> None:
        """Calls `on_lost` in its own thread: the callback stops a query and waits for its batch, which may wait for us."""
        threading.Thread(target=self._on_lost, args=(reason,), name="lakegate-lost", daemon=True).start()

    def _note_lost(self, reason: str) -> bool:
        """Records the loss; returns True if it is new. A loss is final: a later answer may belong to a session closed by others."""
        with self._changed:
            is_news = self._lost is None
            self._lost = self._lost or reason
            self._changed.notify_all()
        return is_news

    def _run(self) -> None:
        assert self._lease_s is not None
        while not self._stop.is_set() and self._lost is None:
            self._beat_now.wait(self._lease_s / BEATS_PER_LEASE)
            self._beat_now.clear()
            if not self._stop.is_set() and self._lost is None:
                self.beat()

    def _guard(self) -> None:
        assert self._lease_s is not None
        while not self._stop.is_set() and self._lost is None:
            self.check_deadline()
            # In short pieces: this waits on a clock that stands still while the machine sleeps, and the lease does not.
            self._stop.wait(min(max(0.0, self.left_s() or 0.0), self._lease_s / BEATS_PER_LEASE))
