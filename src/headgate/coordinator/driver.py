"""Answers the effects of the pure protocol with the real store, log and clock; the only place where the two meet."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, assert_never

from headgate.core.effects import Protocol
from headgate.core.ids import JobName, TableLocation
from headgate.core.turns.effects import (
    CommitEntry,
    CompareAndSet,
    Execute,
    FindMark,
    LiveSessions,
    NoteTurn,
    ReadRecord,
    ReadTokens,
    Stored,
    TableTokens,
    WaitForChange,
    WallClock,
)
from headgate.core.turns.moves import Sessions
from headgate.core.turns.record import Holder, Mark
from headgate.core.turns.tokens import unpack
from headgate.errors import LostTurn, Unavailable
from headgate.events import TurnWaits
from headgate.ports import Clock, EventSink, Randomness, TableLog, TurnStore, WriteGate

R = TypeVar("R")
NOTED_S = 1.0
"""A holder asks again after so long whether a later turn has begun; each time where the answer is on this machine."""
WAKE_UP_S = 1.0
"""A waiter looks again this often even if nothing changed: rules open with time, and sessions die without a word."""

AnyEffect = (
    ReadRecord
    | CompareAndSet
    | LiveSessions
    | NoteTurn
    | WaitForChange
    | WallClock
    | ReadTokens
    | CommitEntry
    | FindMark
    | Execute
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Which processes act for a run, as the record shows them."""

    host: str
    boot_id: str
    pid: int
    pid_start: int
    jvm_pid: int | None = None
    jvm_start: int | None = None
    is_running: Callable[[int, int], bool] = field(default=lambda pid, start: False, compare=False)
    """Whether (pid, start) still runs on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a coordinator is driven with."""

    store: TurnStore
    log: TableLog
    clock: Clock
    randomness: Randomness
    events: EventSink
    gate: WriteGate | None = None
    """What refuses commits of this process outside of a turn; None where nothing does."""


class Driver:
    """Drives pieces of the protocol for one run of one job on one lock."""

    def __init__(self, ports: Ports, *, lock: str, job: JobName, process: Process, check: Callable[[], None]) -> None:
        self.ports, self.lock, self.job, self.process = ports, lock, job, process
        self.check = check
        """Raises `LostTurn` before a write, if this run may have lost its lease."""
        self.seen: dict[TableLocation, TableTokens] = {}
        """Table → its tokens as read last."""
        self.looked_up_ms = 0
        """When the protocol looked at the wall clock last, on the clock that only runs."""
        self._deadline_s = 0.0
        self._noted_s = float("-inf")
        """When the store said last that no later turn has begun."""
        self._is_cancelled = False
        self._shown_reason: str | None = None

    def check_noted(self, mark: Mark) -> None:
        """Raises `LostTurn` if a later turn began than this one: somebody put an older copy of the lock's record in its place."""
        now_s, store = self.ports.clock.monotonic_s(), self.ports.store
        if store.lease_s is not None and now_s - self._noted_s < NOTED_S:
            return
        with contextlib.suppress(Unavailable):  # whether the run is alive, its heartbeats tell
            if store.note_turn(self.lock, mark) != mark:
                raise LostTurn(
                    "a later turn began, as an older copy of the lock's record was restored; nothing more was written",
                    epoch=mark.epoch,
                )
            self._noted_s = now_s

    def limit(self, timeout_s: float) -> None:
        """Fixes the one deadline of the waits that follow."""
        self._deadline_s, self._is_cancelled = self.ports.clock.monotonic_s() + timeout_s, False
        self._shown_reason = None

    def cancel(self) -> None:
        """Makes the wait that is on end as if its time were over. Safe from any thread."""
        self._is_cancelled = True

    def run(self, steps: Protocol[R], execute: Callable[[Execute], Literal["done", "conflict"]] | None = None) -> R:
        """Answers the effects of one piece of the protocol until it returns. Pieces of different tables may run at once."""
        answer: Any = None
        piece = _Piece(self, execute)
        try:
            while True:
                effect: Any = steps.send(answer)
                answer = piece.answer(effect)
        except StopIteration as end:
            result: R = end.value
            return result

    def wait(self, version: int, reason: str) -> Literal["changed", "timeout"]:
        """Until the record may have changed, or the deadline has come; tells a reason that is new."""
        if reason != self._shown_reason:
            self._shown_reason = reason
            self.ports.events.emit(TurnWaits(lock=self.lock, job=self.job, reason=reason))
        left_s = self._deadline_s - self.ports.clock.monotonic_s()
        if left_s <= 0 or self._is_cancelled:
            return "timeout"
        self.ports.store.wait_for_change(self.lock, version, min(left_s, WAKE_UP_S), self.job)
        return "changed"

    def with_surviving_jvm(self, live: Sessions, holder: Holder | None) -> Sessions:
        """The kernel frees a dead process's lock before its JVM is dead: until then the holder counts as alive."""
        if holder is None or holder.session in live.ids or holder.jvm_pid is None or holder.jvm_start is None:
            return live
        is_here = (holder.host, holder.boot_id) == (self.process.host, self.process.boot_id)
        is_own = (holder.jvm_pid, holder.jvm_start) == (self.process.jvm_pid, self.process.jvm_start)
        if is_here and not is_own and self.process.is_running(holder.jvm_pid, holder.jvm_start):
            return replace(live, ids=live.ids | {holder.session})
        return live


class _Piece:
    """One piece of the protocol, as it is driven."""

    def __init__(self, driver: Driver, execute: Callable[[Execute], Literal["done", "conflict"]] | None) -> None:
        self._driver, self._execute = driver, execute
        self._just_put: Stored | None = None
        """What the last effect put in place: a reading that follows at once may as well have been made at that instant."""
        self._live: Sessions | None = None
        """Who was alive when the record was still the one that this was put in place of."""

    def answer(self, effect: AnyEffect) -> object:
        driver, ports = self._driver, self._driver.ports
        just_put, self._just_put = self._just_put, None
        match effect:
            case ReadRecord():
                if just_put is not None:
                    return just_put
                self._live = None
                return ports.store.read(driver.lock)
            case CompareAndSet(record=record, version=version):
                reply = ports.store.compare_and_set(driver.lock, record, version)
                self._just_put = Stored(record, version + 1) if reply == "done" else None
                return reply
            case LiveSessions(holder=holder):
                # Whom the record names had come before it was read; who was not alive afterwards is dead for good.
                self._live = self._live or ports.store.live_sessions(driver.lock)
                return driver.with_surviving_jvm(self._live, holder)
            case NoteTurn(mark=mark):
                return ports.store.note_turn(driver.lock, mark)
            case WaitForChange(version=version, reason=reason):
                return driver.wait(version, reason)
            case WallClock():
                driver.looked_up_ms = int(ports.clock.monotonic_s() * 1000)
                return ports.clock.wall_ms()
            case ReadTokens(table=table):
                driver.seen[table] = read = ports.log.read_tokens(table)
                return read
            case CommitEntry(table=table, after=after, raised=raised):
                driver.check()
                epoch = unpack(raised[0][1]).epoch
                said = user_metadata(driver.lock, driver.job, epoch, batch=None, step="entry", offsets=None)
                return ports.log.commit_entry(table, after, raised, said)
            case FindMark(table=table, token_id=token_id, token=token):
                return ports.log.find_mark(table, token_id, token)
            case Execute():
                assert self._execute is not None, "a step was written where no statement was given"
                return self._execute(effect)
            case _:
                assert_never(effect)


def user_metadata(
    lock: str, job: str, epoch: int | None, batch: int | None, step: str, offsets: str | None, user: object = None
) -> str:
    """The `userMetadata` of a commit, as JSON; keys in a fixed order."""
    data = {"headgate": 1, "lock": lock, "job": job, "epoch": epoch, "batch": batch, "step": step, "offsets": offsets}
    return json.dumps(data if user is None else {**data, "user": user}, separators=(",", ":"))
