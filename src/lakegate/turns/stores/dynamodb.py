"""Turns on several machines of AWS: the record is an item changed by its version, and a run is alive while its counter rises.

No server tells who is alive, and no clock is compared with another's. A run counts its `beat` up. Who looks at it counts it
as dead when it has seen the same number for a whole lease of its own clock, and then takes the item away, on condition that
the number is still the same: from there on the run is dead for everybody, and hears so itself.
See docs/decisions/0011-turns-in-dynamodb.md.

    part                 name               attributes
    meta                 coordinator_id     id: a UUID, made with the first use of the table
    locks                <lock>             record: the record as JSON; version; write: which change made it
    turns                <lock>             epoch, nonce: the turn that began last, by which an older record is known
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
from lakegate.turns.stores.dynamodb_table import ABSENT, Item, NoAnswer, NoTable, Table

RECORD_BYTES_MAX: Final = 390_000
"""An item takes 400 KB, with its names and numbers."""
ANSWERS_PER_LEASE: Final = 5
"""A heartbeat's answer that takes longer is worth as little as none, and the next one should not wait for it."""
CLOSE_S: Final = 3.0
"""How long an end is waited for; one that is not confirmed by then comes with the end of the lease."""
POLL_S, POLL_MAX_S = 0.05, 0.4
"""A waiter looks at the record after the first, then ever more seldom; drawn, so that waiters do not look at once."""

_META, _LOCKS, _TURNS = "meta", "locks", "turns"
_OPEN_HERE: Final[set[str]] = set()
"""The runs of this process."""


class DynamodbSession:
    """One run of one job: an item whose counter rises."""

    def __init__(self, place: DynamodbPlace, lock: str, job: JobName, session_id: SessionId) -> None:
        self._id, self._part, self._job = session_id, _sessions(lock), job
        self._is_closed = False
        self._ending = threading.Lock()
        call_ms = min(place.session_timeout_ms / ANSWERS_PER_LEASE, place.call_timeout_ms)
        # A client of its own: what else this process asks cannot hold a heartbeat up.
        self._table = Table(place, call_ms / 1000)
        _OPEN_HERE.add(session_id)

    @property
    def id(self) -> SessionId:
        return self._id

    def describe_jvm(self, pid: int, start: int) -> None:
        """Nothing to do: the session outlives a killed process by its lease, and so its JVM; the record names the JVM."""

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        """Nothing to tell: there is no connection."""

    def heartbeat(self) -> bool:
        if self._is_closed:
            return False
        try:
            # It is counted up and not set: an answer shows that the number rose after the question was sent, and one that
            # arrives late makes it no number that was there before.
            return self._table.count_up(self._part, self._job, "beat", {"session": self._id}).is_done
        except NoAnswer as error:
            raise self._table.unavailable() from error
        except InvalidRequest as error:
            # Credentials that expired, or a right that was taken away, may come back before the lease is over.
            raise StoreUnavailable(error.message, advice=error.advice) from error

    def close(self) -> None:
        with self._ending:
            if self._is_closed:
                return
            self._is_closed = True
        _OPEN_HERE.discard(self._id)
        with contextlib.suppress(NoAnswer, LakegateError):  # not confirmed: it ends by its lease
            self._table.delete(self._part, self._job, {"session": self._id}, within_s=CLOSE_S)
        self._table.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What an item says of a run."""

    session: SessionId
    job: JobName
    beat: int
    lease_s: float
    host: str
    pid: int

    @property
    def as_seen(self) -> Mapping[str, str | int]:
        """What is expected of an item that nobody has touched since."""
        return {"session": self.session, "beat": self.beat}


class DynamodbTurnStore:
    """A `TurnStore` in one table of DynamoDB.

    Args:
        place: Where, and how; with `create` the table is made if it is missing.
        monotonic_s: The clock by which others are counted as dead; never compared with another's.

    Raises:
        StoreUnavailable: no answer.
        InvalidRequest: there is no such table, or it may not be used.
    """

    def __init__(self, place: DynamodbPlace, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._place, self._monotonic_s = place, monotonic_s
        self._table = Table(place, place.call_timeout_ms / 1000)
        self._open_sessions: list[DynamodbSession] = []
        self._seen: dict[str, dict[SessionId, tuple[int, float]]] = {}
        """Lock → session → its counter, and since when it is seen to be that."""
        self._alive: dict[str, Sessions] = {}
        """Lock → who was alive at the last look."""
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
            with contextlib.suppress(NoAnswer):  # made or not: the next reading tells
                self._table.put(fresh, ABSENT)

    # ------------------------------------------------------------------------------------------------------- the runs

    def open_session(self, lock: str, job: JobName) -> DynamodbSession:
        session = DynamodbSession(self._place, lock, job, SessionId(f"{job}@{uuid.uuid4()}"))
        try:
            self._claim(session, lock, job)
        except BaseException:
            session.close()  # also an item that was made without our knowing
            raise
        self._open_sessions = [each for each in self._open_sessions if each.id in _OPEN_HERE]
        self._open_sessions.append(session)
        return session

    def _claim(self, session: DynamodbSession, lock: str, job: JobName) -> None:
        """Makes the run's item, unless another run has it and lives."""
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
        """Returns when the run can be replaced: what is to be expected of its item then.

        Raises:
            TurnNotGranted: it is alive.
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
            # From the answer that showed the number first to this question it cannot have risen.
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
        """Takes the item of a silent run away, if it is silent still; whether the run is dead now, for everybody."""
        try:
            outcome = self._table.delete(_sessions(lock), run.job, run.as_seen)
        except (NoAnswer, StoreUnavailable, InvalidRequest):
            return False  # not now, or not by somebody who may only look
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
        return "unknown"  # an earlier attempt may have made the next version, and others those after it

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        deadline_s, pause_s = time.monotonic() + timeout_s, POLL_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, pause_s * random.SystemRandom().uniform(0.5, 1.0)))
            pause_s = min(1.5 * pause_s, POLL_MAX_S)
            try:
                stored = self.read(lock)
            except StoreUnavailable:
                continue  # the next reading finds out, within its own time
            if stored.version != version and not self._leaves_waiting(lock, stored.record, ticket_of):
                return

    def _leaves_waiting(self, lock: str, record: LockRecord | None, job: JobName | None) -> bool:
        """Whether the record is seen to let another in; who is not sure looks for himself."""
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
