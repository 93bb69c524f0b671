"""Turns within one process: for the quick start and tests, and the one store whose lease can be ended on demand."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from lakegate.errors import TurnNotGranted
from lakegate.ids import JobName, SessionId
from lakegate.turns.ports import SessionState
from lakegate.turns.protocol.effects import CasReply, Stored
from lakegate.turns.protocol.lock_record import LockRecord, Mark, higher, record_from_json
from lakegate.turns.protocol.transitions import Sessions, first_to_go


@dataclass(eq=False)
class _Session:
    """A run of a job. `renewed_s` is on the store's clock."""

    store: MemoryTurnStore
    lock: str
    job: JobName
    id: SessionId
    renewed_s: float
    is_closed: bool = False

    def describe_jvm(self, pid: int, start: int) -> None:
        """Does nothing: this process and its JVM end together."""

    def heartbeat(self) -> bool:
        return self.store._renew(self)

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        """Does nothing: there is no connection."""

    def close(self) -> None:
        self.store._end(self)


@dataclass
class MemoryTurnStore:
    """A `TurnStore` in a dictionary.

    With `lease_s` a session that is not renewed for that long on `monotonic_s` is dead, as with a server that grants leases.
    This tests how the runtime handles the end of a lease.
    """

    lease_s: float | None = None
    monotonic_s: Callable[[], float] = lambda: 0.0
    _id: str = field(default_factory=lambda: str(uuid.uuid4()))
    _records: dict[str, tuple[str, int]] = field(default_factory=dict)
    _marks: dict[str, Mark] = field(default_factory=dict)
    _sessions: list[_Session] = field(default_factory=list)
    _mutex: threading.RLock = field(default_factory=threading.RLock)
    _changed: threading.Condition = field(init=False)
    _let_in: dict[tuple[str, JobName], threading.Condition] = field(default_factory=dict)
    """A condition for each waiting ticket: notified when a change of the record lets it in, so that the others keep sleeping."""

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self._mutex)

    def coordinator_id(self) -> str:
        return self._id

    def open_session(self, lock: str, job: JobName) -> _Session:
        with self._changed:
            for other in self._alive(lock):
                if other.job == job:
                    raise TurnNotGranted(f"a run of {job} is alive already", session=other.id)
            session = _Session(self, lock, job, SessionId(f"{job}@{uuid.uuid4()}"), self.monotonic_s())
            self._sessions.append(session)
            return session

    def read(self, lock: str) -> Stored:
        with self._changed:
            text, version = self._records.get(lock, ("", 0))
        return Stored(record_from_json(text) if version else None, version)

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        with self._changed:
            if self._records.get(lock, ("", 0))[1] != version:
                return "stale"
            self._records[lock] = (record.to_json(), version + 1)
            self._changed.notify_all()
            first = first_to_go(record, self.live_sessions(lock), now_ms=0)
            if first is not None:
                self._ticket(lock, first.job).notify_all()
            return "done"

    def note_turn(self, lock: str, mark: Mark) -> Mark:
        with self._changed:
            self._marks[lock] = higher(self._marks.get(lock), mark)
            return self._marks[lock]

    def live_sessions(self, lock: str) -> Sessions:
        with self._changed:
            alive, mark = self._alive(lock), self._marks.get(lock)
        return Sessions(ids=frozenset(s.id for s in alive), jobs=frozenset(s.job for s in alive), mark=mark)

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        with self._changed:
            if self._records.get(lock, ("", 0))[1] == version:
                (self._changed if ticket_of is None else self._ticket(lock, ticket_of)).wait(timeout_s)

    def locks(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(sorted(self._records))

    def close(self) -> None:
        with self._changed:
            self._sessions.clear()
            self._changed.notify_all()

    def _ticket(self, lock: str, job: JobName) -> threading.Condition:
        return self._let_in.setdefault((lock, job), threading.Condition(self._mutex))

    def _alive(self, lock: str) -> list[_Session]:
        now_s = self.monotonic_s()
        if self.lease_s is not None:
            lease_s = self.lease_s
            self._sessions = [s for s in self._sessions if now_s - s.renewed_s < lease_s]
        return [s for s in self._sessions if s.lock == lock]

    def _renew(self, session: _Session) -> bool:
        with self._changed:
            if session not in self._alive(session.lock):
                return False
            session.renewed_s = self.monotonic_s()
            return True

    def _end(self, session: _Session) -> None:
        with self._changed:
            if session in self._sessions:
                self._sessions.remove(session)
                self._changed.notify_all()
