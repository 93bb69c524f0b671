"""Answers the effects of the pure turn protocol with the real store, log and clock. No other module connects the two."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, assert_never

from lakegate.effects import Steps, drive
from lakegate.errors import LostTurn, StoreUnavailable, Unavailable
from lakegate.ids import JobName, TableLocation
from lakegate.ports import Clock, Randomness
from lakegate.telemetry.events import EventSink, TurnEnded, TurnWaits
from lakegate.turns.ports import TableLog, TurnStore, WriteGate
from lakegate.turns.protocol.effects import (
    CasReply,
    CommitEntry,
    CompareAndSet,
    FindMark,
    LiveSessions,
    NoteTurn,
    ReadRecord,
    ReadTokens,
    RunStatement,
    Stored,
    TableTokens,
    WaitForChange,
    WallClock,
)
from lakegate.turns.protocol.fencing import unpack
from lakegate.turns.protocol.lock_record import Holder, LockRecord, Mark
from lakegate.turns.protocol.transitions import Sessions

R = TypeVar("R")
PATIENCE_S, CANCELLED_S = 10.0, 1.0
"""Limits of retries while a store refuses changes or leaves outcomes unknown; the second applies after `cancel`."""
PAUSE_S, PAUSE_MAX_S = 0.02, 0.5
"""Pause before a retry; doubled each time."""
NOTED_S = 1.0
"""Interval at which a holder checks whether a later turn has begun; a local store is checked each time."""
WAKE_UP_S = 1.0
"""A waiter reads the record this often even if nothing changed: order rules open with time, and sessions die silently."""

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
    | RunStatement
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The processes that act for a run, as the record shows them."""

    host: str
    boot_id: str
    pid: int
    pid_start: int
    jvm_pid: int | None = None
    jvm_start: int | None = None
    is_running: Callable[[int, int], bool] = field(default=lambda pid, start: False, compare=False)
    """Returns True if the process (pid, start) still runs on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPorts:
    """The adapters that a coordinator is driven with."""

    store: TurnStore
    log: TableLog
    clock: Clock
    randomness: Randomness
    events: EventSink
    gate: WriteGate | None = None
    """Refuses commits of this process outside of a turn; None where no gate is installed."""


class EffectRunner:
    """Runs pieces of the protocol for one run of one job on one lock."""

    def __init__(
        self,
        ports: RunnerPorts,
        *,
        lock: str,
        job: JobName,
        process: Process,
        check: Callable[[], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.ports, self.lock, self.job, self.process = ports, lock, job, process
        self.check = check
        """Raises `LostTurn` before a write, if this run may have lost its lease."""
        self.seen: dict[TableLocation, TableTokens] = {}
        """Table → its tokens as of the last read."""
        self.looked_up_ms = 0
        """When the protocol last read the wall clock, on the monotonic clock."""
        self.sleep = sleep
        """Waits this many seconds before the store is asked again."""
        self._deadline_s = 0.0
        self._noted_s = float("-inf")
        """When the store last reported that no later turn has begun."""
        self._is_cancelled = False
        self._shown_reason: str | None = None

    def report_closed(self, before: LockRecord | None, after: LockRecord) -> None:
        """Reports the turn that a change of the record has closed, if its run was another process: that one may be dead."""
        held = None if before is None else before.holder
        if before is None or held is None or after.holder is not None:
            return
        mine = self.process
        is_own = (held.host, held.boot_id) == (mine.host, mine.boot_id)
        is_own &= (held.pid, held.pid_start) == (mine.pid, mine.pid_start)
        if after.job(held.job).lost == (before.epoch, held.batch) and not is_own:
            now_ms = self.ports.clock.wall_ms()
            self.ports.events.emit(closed_turn(self.lock, before.epoch, held, by=str(self.job), now_ms=now_ms))

    def check_noted(self, mark: Mark) -> None:
        """Raises `LostTurn` if a later turn began than this one, because an older copy of the lock's record was restored."""
        now_s, store = self.ports.clock.monotonic_s(), self.ports.store
        if store.lease_s is not None and now_s - self._noted_s < NOTED_S:
            return
        with contextlib.suppress(Unavailable):  # the heartbeats check whether the run is alive
            if store.note_turn(self.lock, mark) != mark:
                raise LostTurn(
                    "a later turn began, as an older copy of the lock's record was restored; nothing more was written",
                    epoch=mark.epoch,
                )
            self._noted_s = now_s

    def limit(self, timeout_s: float) -> None:
        """Fixes one deadline for all waits that follow."""
        self._deadline_s, self._is_cancelled = self.ports.clock.monotonic_s() + timeout_s, False
        self._shown_reason = None

    def cancel(self) -> None:
        """Ends the current wait as if its timeout had passed. Safe from any thread."""
        self._is_cancelled = True

    def patience_s(self) -> float:
        """The seconds for which a store may refuse changes or leave outcomes unknown; fewer after `cancel`."""
        return CANCELLED_S if self._is_cancelled else PATIENCE_S

    def run(self, steps: Steps[R], execute: Callable[[RunStatement], Literal["done", "conflict"]] | None = None) -> R:
        """Answers the effects of one piece of the protocol until it returns. Pieces of different tables may run at once."""
        return drive(steps, _Piece(self, execute).answer)

    def wait(self, version: int, reason: str) -> Literal["changed", "timeout"]:
        """Waits until the record may have changed or the deadline has passed; reports a new reason."""
        if reason != self._shown_reason:
            self._shown_reason = reason
            self.ports.events.emit(TurnWaits(lock=self.lock, job=self.job, reason=reason))
        left_s = self._deadline_s - self.ports.clock.monotonic_s()
        if left_s <= 0 or self._is_cancelled:
            return "timeout"
        self.ports.store.wait_for_change(self.lock, version, min(left_s, WAKE_UP_S), self.job)
        return "changed"

    def with_surviving_jvm(self, live: Sessions, holder: Holder | None) -> Sessions:
        """Counts the holder as alive until its JVM is dead: the kernel frees a dead process's lock earlier."""
        if holder is None or holder.session in live.ids or holder.jvm_pid is None or holder.jvm_start is None:
            return live
        is_here = (holder.host, holder.boot_id) == (self.process.host, self.process.boot_id)
        is_own = (holder.jvm_pid, holder.jvm_start) == (self.process.jvm_pid, self.process.jvm_start)
        if is_here and not is_own and self.process.is_running(holder.jvm_pid, holder.jvm_start):
            return replace(live, ids=live.ids | {holder.session})
        return live


class _Piece:
    """A piece of the protocol that is being run."""

    def __init__(
        self, driver: EffectRunner, execute: Callable[[RunStatement], Literal["done", "conflict"]] | None
    ) -> None:
        self._driver, self._execute = driver, execute
        self._just_put: Stored | None = None
        """The record that the last effect wrote: a read that follows at once may be answered with it."""
        self._read: LockRecord | None = None
        """The record as it was last read."""
        self._in_question: tuple[LockRecord | None, LockRecord] | None = None
        """The records before and after a change whose outcome is unknown."""
        self._unknown_s: float | None = None
        """Since when the outcomes of changes have been unknown."""
        self._pause_s = PAUSE_S
        self._live: Sessions | None = None
        """The sessions that were alive before this record was written."""

    def answer(self, effect: AnyEffect) -> object:
        driver, ports = self._driver, self._driver.ports
        just_put, self._just_put = self._just_put, None
        match effect:
            case ReadRecord():
                if just_put is None:
                    self._live = None
                stored = just_put or ports.store.read(driver.lock)
                if self._in_question is not None and self._in_question[1] == stored.record:
                    driver.report_closed(*self._in_question)
                self._read, self._in_question = stored.record, None
                return stored
            case CompareAndSet(record=record, version=version):
                reply = self._put(record, version)
                self._just_put = Stored(record, version + 1) if reply == "done" else None
                if reply == "done":
                    driver.report_closed(self._read, record)
                self._in_question = (self._read, record) if reply == "unknown" else None
                return reply
            case LiveSessions(holder=holder):
                # Every session that the record names was opened before the read; a session that is not alive after it is dead for
                # good.
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
                committed = ports.log.commit_entry(table, after, raised, said)
                self._pace(committed, f"an entry commit on {table}")
                return committed
            case FindMark(table=table, token_id=token_id, token=token):
                return ports.log.find_mark(table, token_id, token)
            case RunStatement():
                assert self._execute is not None, "a step was written where no statement was given"
                return self._execute(effect)
            case _:
                assert_never(effect)

    def _put(self, record: LockRecord, version: int) -> CasReply:
        """Writes a record; retries for a bounded time if the store refuses it, for example on a full disk.

        Raises:
            StoreUnavailable: The store still refuses, or the outcome stays unknown; the run ends, so that others go on.
        """
        driver, clock = self._driver, self._driver.ports.clock
        refused_s: float | None = None
        while True:
            try:
                reply = driver.ports.store.compare_and_set(driver.lock, record, version)
            except StoreUnavailable:
                now_s = clock.monotonic_s()
                refused_s = now_s if refused_s is None else refused_s
                if now_s - refused_s >= driver.patience_s():
                    raise
                driver.sleep(PAUSE_MAX_S)
                continue
            self._pace(reply, f"a change of the record of {driver.lock}")
            return reply

    def _pace(self, reply: CasReply, what: str) -> None:
        """Pauses before the protocol reads the outcome of an unanswered change, longer each time.

        Raises:
            StoreUnavailable: The outcome has been unknown for too long.
        """
        driver, now_s = self._driver, self._driver.ports.clock.monotonic_s()
        if reply != "unknown":
            self._unknown_s, self._pause_s = None, PAUSE_S
            return
        self._unknown_s = now_s if self._unknown_s is None else self._unknown_s
        if now_s - self._unknown_s >= driver.patience_s():
            raise StoreUnavailable(f"what became of {what} could not be found out for {driver.patience_s():g} s")
        driver.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


def closed_turn(lock: str, epoch: int, held: Holder, *, by: str, now_ms: int) -> TurnEnded:
    """Returns what is known of a turn that another closed, because its run has died or a person took the turn away.

    Args:
        lock: The lock.
        epoch: The epoch of the turn.
        held: The turn as the record named it.
        by: The job that closed it, or the person.
        now_ms: The wall clock.
    """
    what = "the turn" if held.batch is None else f"batch {held.batch}"
    return TurnEnded(
        lock=lock,
        job=held.job,
        epoch=epoch,
        query_id=None,
        run=held.run,
        batches=None,
        predecessor=None,
        asked_at_ms=held.since_ms,
        granted_at_ms=held.since_ms,
        first_write_at_ms=None,
        commit_log_at_ms=None,
        released_at_ms=now_ms,
        outcome="lost",
        reason=f"its run did not complete {what}; closed by {by}",
        boot_id=held.boot_id,
        closed_by=by,
    )


def user_metadata(
    lock: str, job: str, epoch: int | None, batch: int | None, step: str, offsets: str | None, user: object = None
) -> str:
    """Returns the `userMetadata` of a commit, as JSON; keys in a fixed order."""
    data = {"lakegate": 1, "lock": lock, "job": job, "epoch": epoch, "batch": batch, "step": step, "offsets": offsets}
    return json.dumps(data if user is None else {**data, "user": user}, separators=(",", ":"))
