"""Actions of a person on the order of turns: pause and resume a stream, break a lock. Starts no Spark.

On the layer of `runtime.py`. Every action is written to the ledger before it is done, and again with its outcome, so that none
is hidden. The record is changed by compare-and-set, as by any job.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lakegate.config import Pipeline
from lakegate.errors import InvalidRequest, Unavailable
from lakegate.ids import JobName
from lakegate.ops.inspection import existing_store, stream_named
from lakegate.telemetry.events import Action, PersonActed
from lakegate.telemetry.ledger import LedgerSink
from lakegate.turns.effect_runner import closed_turn
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.lock_record import LockRecord, Pause

TRIES_MAX = 50
"""Maximum number of compare-and-sets on a record that others change frequently."""
REASON_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The turn that was taken away."""

    lock: str
    job: str
    epoch: int
    host: str
    pid: int
    batch: int | None
    token_ids: tuple[str, ...]
    """In doubt until the next turn has entered the tables; none for a turn without tables."""
    was_alive: bool


def pause(pipeline: Pipeline, name: str, reason: str) -> Pause:
    """Stops a stream from taking turns; a turn in progress goes on to its end. Its successors do not wait for it.

    Raises:
        InvalidRequest: The stream is unknown or already paused; nothing has run on its lock yet; or no reason is given.
        Unavailable: The store or the ledger does not answer.
    """
    lock, job = pipeline.lock_of(stream_named(pipeline, name)), JobName(name)
    made = Pause(since_ms=_now_ms(), by=_somebody(), reason=_said(reason))

    def change(record: LockRecord) -> LockRecord | None:
        there = record.paused.get(job)
        if there is not None and there != made:
            raise InvalidRequest(f"{name} is {there} already; nothing was changed")
        return transitions.pause(record, job, made) if there is None else None

    _act(pipeline, lock, _acted(lock, name, "pause", made.reason), change)
    return made


def resume(pipeline: Pipeline, name: str, reason: str = "") -> Pause:
    """Lets a paused stream ask again; returns the pause that ended.

    Raises:
        InvalidRequest: The stream is not paused.
        Unavailable: As `pause`.
    """
    lock, job = pipeline.lock_of(stream_named(pipeline, name)), JobName(name)
    ended: list[Pause] = []

    def change(record: LockRecord) -> LockRecord | None:
        there = record.paused.get(job)
        if there is None:
            if ended:
                return None
            raise InvalidRequest(f"{name} is not paused; nothing was changed")
        ended[:] = [there]
        return transitions.resume(record, job)

    _act(pipeline, lock, _acted(lock, name, "resume", " ".join(reason.split())), change)
    return ended[0]


def break_lock(pipeline: Pipeline, lock: str, reason: str) -> Broken:
    """Takes the turn away from its holder at any time: its unfinished writes are in doubt, and the tables refuse them once the
    next turn has entered. No rows are lost or duplicated: the batch runs again.

    Raises:
        InvalidRequest: The lock is unknown; there is no turn; the turn ended meanwhile; or no reason is given.
        Unavailable: As `pause`.
    """
    text = _said(reason)
    with _store(pipeline, lock) as store:
        stored = store.read(lock).record
        if stored is None or stored.holder is None:
            raise InvalidRequest(f"nobody has the turn on {lock}; nothing was changed", advice="See: lakegate status")
        held, epoch = stored.holder, stored.epoch
        was_alive = held.session in store.live_sessions(lock).ids

    def change(record: LockRecord) -> LockRecord | None:
        if not record.is_held_by(held.nonce):
            if record.job(held.job).lost == (epoch, held.batch):
                return None  # by us, in a change whose reply was lost, or by another process before us
            raise InvalidRequest(f"the turn of {held.job} on {lock} has ended meanwhile; nothing was changed")
        return transitions.close(record)

    doubted = tuple(map(str, held.token_ids)) if held.tables else ()  # a program of `lakegate turn` writes with none
    act = _acted(lock, held.job, "break", text)
    _act(pipeline, lock, replace(act, epoch=epoch, token_ids=doubted), change)
    LedgerSink(pipeline.storage).emit(closed_turn(lock, epoch, held, by=act.by, now_ms=_now_ms()))
    return Broken(
        lock=lock,
        job=held.job,
        epoch=epoch,
        host=held.host,
        pid=held.pid,
        batch=held.batch,
        token_ids=doubted,
        was_alive=was_alive,
    )


def _act(pipeline: Pipeline, lock: str, act: PersonActed, change: Callable[[LockRecord], LockRecord | None]) -> None:
    """Changes the record, with ledger entries before and after. `change`: returns the next record; None if it is done."""
    ledger = LedgerSink(pipeline.storage)
    with _store(pipeline, lock) as store:
        record = store.read(lock).record
        if record is None:
            raise _nothing_yet(lock)
        change(record)  # refused before anything is written
        ledger.emit(act)
        try:
            _change(store, lock, change)
        except (InvalidRequest, Unavailable):
            ledger.emit(replace(act, outcome="not_done", at_ms=_now_ms()))
            raise
    ledger.emit(replace(act, outcome="done", at_ms=_now_ms()))


def _change(store: TurnStore, lock: str, change: Callable[[LockRecord], LockRecord | None]) -> None:
    for _ in range(TRIES_MAX):
        stored = store.read(lock)
        if stored.record is None:
            raise _nothing_yet(lock)
        changed = change(stored.record)
        if changed is None or store.compare_and_set(lock, changed, stored.version) == "done":
            return
    raise Unavailable(
        f"the record of {lock} changed {TRIES_MAX} times in a row; nothing was changed", advice="Try again"
    )


@contextlib.contextmanager
def _store(pipeline: Pipeline, lock: str) -> Iterator[TurnStore]:
    with existing_store(pipeline.coordinator.url) as store:
        known = dict.fromkeys([*(table.lock for table in pipeline.tables.values()), *(store.locks() if store else ())])
        if lock not in known:
            raise InvalidRequest(
                f"there is no lock {lock!r}; nothing was changed", advice=f"The locks are: {', '.join(known)}"
            )
        if store is None:
            raise _nothing_yet(lock)
        yield store


def _nothing_yet(lock: str) -> InvalidRequest:
    return InvalidRequest(
        f"no job has asked for a turn on {lock} yet; nothing was changed",
        advice="Leave the stream out when you begin: lakegate run STREAM...",
    )


def _said(reason: str) -> str:
    text = " ".join(reason.split())
    if not 0 < len(text) <= REASON_LENGTH_MAX:
        raise InvalidRequest(
            f"a reason of 1 to {REASON_LENGTH_MAX} characters is needed; nothing was changed",
            advice="Say why, with --reason TEXT: others will read it in lakegate status and in the ledger",
        )
    return text


def _acted(lock: str, job: str, action: Action, reason: str) -> PersonActed:
    return PersonActed(
        action_id=str(uuid.uuid4()),
        lock=lock,
        job=job,
        action=action,
        by=_somebody(),
        reason=reason,
        at_ms=_now_ms(),
        outcome="asked",
    )


def _somebody() -> str:
    """Returns user and host, as the machine knows them, to record who acted."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())  # in a container
    return f"{user}@{socket.gethostname()}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
