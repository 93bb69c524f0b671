"""Turns on several AWS machines: the record is an item changed by its version, and a run is alive while its counter rises.

No server reports which runs are alive, and no clock is compared with another's. A run increments its `beat`. An observer that
has seen the same number for a whole lease of its own clock counts the run as dead. It then deletes the item, on condition
that the number is still the same: from then on the run is dead for everybody, and its own next heartbeat reports it.
See docs/decisions/0011-turns-in-dynamodb.md.

    part                 name               attributes
    meta                 coordinator_id     id: a UUID, created at the first use of the table
    locks                <lock>             record: the record as JSON; version; write: which change made it
    turns                <lock>             epoch, nonce: the turn that began last, which reveals an older record
    sessions/<lock>      <job>              session, beat, lease_ms: which run; host, boot_id, pid: which process
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lakegate.config.dynamodb import DynamodbPlace
from lakegate.errors import Corrupt, InvalidRequest, LakegateError, StoreUnavailable, TurnNotGranted
from lakegate.ids import Epoch, JobName, Nonce, SessionId
from lakegate.turns.host import boot_id
from lakegate.turns.ports import SessionState
from lakegate.turns.protocol.effects import CasReply, Stored
from lakegate.turns.protocol.lock_record import LockRecord, Mark, NewerFormat, higher, record_from_json
from lakegate.turns.protocol.transitions import Sessions, first_to_go
from lakegate.turns.stores.dynamodb_table import ABSENT, DynamodbTable, Item, NoAnswer, NoTable

RECORD_BYTES_MAX: Final = 390_000
"""The limit of an item is 400 KB, with its names and numbers."""
ANSWERS_PER_LEASE: Final = 5
"""A later answer to a heartbeat is as useless as none, and the next heartbeat must not wait for it."""
CLOSE_S: Final = 3.0
"""How long `close` waits for the end of the session; an unconfirmed session ends with its lease."""
POLL_S, POLL_MAX_S = 0.05, 0.4
"""A waiter reads the record after the first pause, then ever less often; random, so that waiters do not read together."""

_META, _LOCKS, _TURNS = "meta", "locks", "turns"
_OPEN_HERE: Final[set[str]] = set()
"""The runs of this process."""


class DynamodbSession:
    """A run of a job: an item whose counter rises."""

    def __init__(self, place: DynamodbPlace, lock: str, job: JobName, session_id: SessionId) -> None:
        self._id, self._part, self._job = session_id, _sessions(lock), job
        self._is_closed = False
        self._ending = threading.Lock()
        call_ms = min(place.session_timeout_ms / ANSWERS_PER_LEASE, place.call_timeout_ms)
        # A separate client: other requests of this process cannot delay a heartbeat.
        self._table = DynamodbTable(place, call_ms / 1000)
        _OPEN_HERE.add(session_id)

    @property
    def id(self) -> SessionId:
        return self._id

    def describe_jvm(self, pid: int, start: int) -> None:
        """Does nothing: the session outlives a killed process by its lease, and so its JVM; the record names the JVM."""

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        """Does nothing: there is no connection."""

    def heartbeat(self) -> bool:
        if self._is_closed:
            return False
        try:
            # Incremented, not set: an answer shows that the number rose after the request was sent, and a late request cannot
            # bring back an earlier number.
            return self._table.count_up(self._part, self._job, "beat", {"session": self._id}).is_done
        except NoAnswer as error:
            raise self._table.unavailable() from error
        except InvalidRequest as error:
            # Credentials that expired, or a permission that was revoked, may come back before the lease is over.
            raise StoreUnavailable(error.message, advice=error.advice) from error

    def close(self) -> None:
        with self._ending:
            if self._is_closed:
                return
            self._is_closed = True
        _OPEN_HERE.discard(self._id)
        with contextlib.suppress(NoAnswer, LakegateError):  # not confirmed: the session ends by its lease
            self._table.delete(self._part, self._job, {"session": self._id}, within_s=CLOSE_S)
        self._table.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The content of a run's item."""

    session: SessionId
    job: JobName
    beat: int
    lease_s: float
    host: str
    pid: int

    @property
    def as_seen(self) -> Mapping[str, str | int]:
        """Returns the values expected of an item that nobody has changed since."""
        return {"session": self.session, "beat": self.beat}


class DynamodbTurnStore:
    """A `TurnStore` in one table of DynamoDB.

    Args:
        place: The address and settings; with `create` the table is created if it is missing.
        monotonic_s: The clock by which others are counted as dead; never compared with another's.

    Raises:
        StoreUnavailable: no answer.
        InvalidRequest: there is no such table, or it may not be used.
    """

    def __init__(self, place: DynamodbPlace, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._place, self._monotonic_s = place, monotonic_s
        self._table = DynamodbTable(place, place.call_timeout_ms / 1000)
        self._open_sessions: list[DynamodbSession] = []
        self._seen: dict[str, dict[SessionId, tuple[int, float]]] = {}
        """Lock → session → its counter, and the time since when the counter has been seen at this value."""
        self._alive: dict[str, Sessions] = {}
        """Lock → the runs that were alive at the last read."""
        try:
            try:
                self.coordinator_id()
            except NoTable:
                if not place.create:
                    raise
                self._table.make()
                self.coordinator_id()
        except BaseException:
            self._table.close()
            raise

    @property
    def lease_s(self) -> float | None:
        return self._place.session_timeout_ms / 1000

    def coordinator_id(self) -> str:
        while True:
            found = self._table.get(_META, "coordinator_id")
            if found is not None:
                return str(found["id"])
            fresh: Item = {"part": _META, "name": "coordinator_id", "id": str(uuid.uuid4())}
            with contextlib.suppress(NoAnswer):  # created or not: the next read shows it
                self._table.put(fresh, ABSENT)

    # ------------------------------------------------------------------------------------------------------- the runs

    def open_session(self, lock: str, job: JobName) -> DynamodbSession:
        session = DynamodbSession(self._place, lock, job, SessionId(f"{job}@{uuid.uuid4()}"))
        try:
            self._claim(session, lock, job)
        except BaseException:
            session.close()  # also deletes an item whose creation was not confirmed
            raise
        self._open_sessions = [each for each in self._open_sessions if each.id in _OPEN_HERE]
        self._open_sessions.append(session)
        return session

    def _claim(self, session: DynamodbSession, lock: str, job: JobName) -> None:
        """Creates the run's item, unless another live run has it."""
        item: Item = {
            "part": _sessions(lock),
            "name": job,
            "session": session.id,
            "beat": 0,
            "lease_ms": self._place.session_timeout_ms,
            "host": socket.gethostname(),
            "boot_id": boot_id(),
            "pid": os.getpid(),
        }
        expected: Mapping[str, str | int] = ABSENT
        while True:
            try:
                outcome = self._table.put(item, expected)
            except NoAnswer as error:
                raise self._table.unavailable() from error
            if outcome.is_done or (outcome.item is not None and outcome.item.get("session") == session.id):
                return
            expected = ABSENT if outcome.item is None else self._wait_for_end(lock, _run(outcome.item))

    def _wait_for_end(self, lock: str, other: _Run) -> Mapping[str, str | int]:
        """Returns the expected values of the run's item when the run can be replaced.

        Raises:
            TurnNotGranted: the run is alive.
        """
        since_s = self._monotonic_s()
        while other.session not in _OPEN_HERE:
            time.sleep(POLL_MAX_S * random.SystemRandom().uniform(0.5, 1.0))
            asked_s = self._monotonic_s()
            found = self._table.get(_sessions(lock), other.job)
            if found is None:
                return ABSENT
            if _run(found).as_seen != other.as_seen:
                break
            if asked_s - since_s >= other.lease_s:
                return other.as_seen
        raise TurnNotGranted(
            f"another run of {other.job} is alive; this one did nothing",
            advice="Stop that run first, or give this job another name",
            host=other.host,
            pid=other.pid,
            lock=lock,
        )

    def live_sessions(self, lock: str) -> Sessions:
        asked_s = self._monotonic_s()
        runs = [_run(item) for item in self._table.items(_sessions(lock))]
        answered_s = self._monotonic_s()
        before, now = self._seen.get(lock, {}), {}
        alive = []
        for run in runs:
            beat, since_s = before.get(run.session, (None, answered_s))
            now[run.session] = run.beat, since_s if beat == run.beat else answered_s
            # The counter cannot have risen between the answer that first showed this number and this question.
            is_silent = beat == run.beat and asked_s - since_s >= run.lease_s
            if not (is_silent and self._is_buried(lock, run)):
                alive.append(run)
        self._seen[lock] = now
        found = Sessions(
            ids=frozenset(run.session for run in alive),
            jobs=frozenset(run.job for run in alive),
            mark=self._mark(self._table.get(_TURNS, lock)),
        )
        self._alive[lock] = found
        return found

    def note_turn(self, lock: str, mark: Mark) -> Mark:
        item: Item = {"part": _TURNS, "name": lock, "epoch": mark.epoch, "nonce": mark.nonce}
        found = self._table.get(_TURNS, lock)
        while True:
            before = self._mark(found)
            stands = higher(before, mark)
            if stands != mark or before == mark:
                return stands
            expected: Mapping[str, str | int] = ABSENT
            if before is not None:
                expected = {"epoch": before.epoch, "nonce": before.nonce}
            try:
                outcome = self._table.put(item, expected)
            except NoAnswer as error:
                raise self._table.unavailable() from error
            if outcome.is_done:
                return mark
            found = outcome.item

    def _mark(self, item: Item | None) -> Mark | None:
        if item is None:
            return None
        try:
            return Mark(Epoch(int(item["epoch"])), Nonce(str(item["nonce"])))
        except (KeyError, ValueError) as error:
            raise Corrupt(f"the note of the last turn is damaged: {error}", table=self._place.table) from error

    def _is_buried(self, lock: str, run: _Run) -> bool:
        """Deletes the item of a silent run, if it is still silent; returns True if the run is now dead for everybody."""
        try:
            outcome = self._table.delete(_sessions(lock), run.job, run.as_seen)
        except (NoAnswer, StoreUnavailable, InvalidRequest):
            return False  # not now, or not with read-only permission
        return outcome.is_done or outcome.item is None or outcome.item.get("session") != run.session

    # ----------------------------------------------------------------------------------------------------- the record

    def read(self, lock: str) -> Stored:
        item = self._table.get(_LOCKS, lock)
        if item is None:
            return Stored(None, 0)
        try:
            return Stored(record_from_json(str(item["record"])), int(item["version"]))
        except NewerFormat as error:
            raise InvalidRequest(
                f"{error}; nothing was changed", advice="Install a newer lakegate", lock=lock
            ) from error
        except (KeyError, ValueError) as error:
            raise Corrupt(f"{error}", table=self._place.table, lock=lock) from error

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        text, write = record.to_json(), str(uuid.uuid4())
        if len(text.encode()) > RECORD_BYTES_MAX:
            raise InvalidRequest(
                "the lock's record is too large for DynamoDB; nothing was changed",
                lock=lock,
                size_bytes=len(text.encode()),
            )
        item: Item = {"part": _LOCKS, "name": lock, "record": text, "version": version + 1, "write": write}
        try:
            outcome = self._table.put(item, {"version": version} if version else ABSENT)
        except (NoAnswer, StoreUnavailable):
            return "unknown"
        found = outcome.item or {}
        if outcome.is_done or found.get("write") == write:
            return "done"
        if not outcome.is_repeated or found.get("version") == version + 1:
            return "stale"
        return "unknown"  # an earlier attempt may have written the next version, and others the versions after it

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        deadline_s, pause_s = time.monotonic() + timeout_s, POLL_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, pause_s * random.SystemRandom().uniform(0.5, 1.0)))
            pause_s = min(1.5 * pause_s, POLL_MAX_S)
            try:
                stored = self.read(lock)
            except StoreUnavailable:
                continue  # the next read finds out, within its own timeout
            if stored.version != version and not self._leaves_waiting(lock, stored.record, ticket_of):
                return

    def _leaves_waiting(self, lock: str, record: LockRecord | None, job: JobName | None) -> bool:
        """Returns True if the record is known to let another job in; in doubt the caller reads for itself."""
        if record is None or job is None:
            return False
        if record.holder is not None:
            return True
        known = self._alive.get(lock)
        if known is None or any(ticket.session not in known.ids for ticket in record.tickets):
            return False
        first = first_to_go(record, known, time.time_ns() // 1_000_000)
        return first is not None and first.job != job

    def locks(self) -> tuple[str, ...]:
        return tuple(sorted(str(item["name"]) for item in self._table.items(_LOCKS)))

    def close(self) -> None:
        for session in self._open_sessions:
            session.close()
        self._table.close()


def _sessions(lock: str) -> str:
    return f"sessions/{lock}"


def _run(item: Item) -> _Run:
    try:
        return _Run(
            session=SessionId(str(item["session"])),
            job=JobName(str(item["name"])),
            beat=int(item["beat"]),
            lease_s=int(item["lease_ms"]) / 1000,
            host=str(item.get("host")),
            pid=int(item.get("pid", 0)),
        )
    except (KeyError, ValueError) as error:
        raise Corrupt(f"the item of a run is damaged: {error}", part=item["part"], name=item["name"]) from error
