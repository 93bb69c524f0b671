"""A job as the simulator drives it: the real turn protocol, put together as the supervised run mode does.

Spark's part consists of effects: it fixes a batch's offsets before the function runs, and writes the commit log after the function
returned. The rules for editors of `turns/protocol/protocol.py` also apply here, except that `run_job` catches exceptions, as a
supervisor does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lakegate.effects import Effect, Steps, perform
from lakegate.errors import LostTurn
from lakegate.ids import JobName, Nonce, SessionId, TableLocation, TokenId, Version
from lakegate.turns.protocol.effects import Attempt, ReadRecord, StepMark, WaitForChange
from lakegate.turns.protocol.fencing import Behind as TableIsAhead
from lakegate.turns.protocol.fencing import Token
from lakegate.turns.protocol.lock_record import Holder
from lakegate.turns.protocol.ordering import NoRule, OrderRule
from lakegate.turns.protocol.protocol import (
    AlreadyApplied,
    CheckpointView,
    Entered,
    Granted,
    GrantedTurn,
    NoTable,
    NotGranted,
    Order,
    OtherWork,
    SessionLost,
    Written,
    announce_idle,
    begin,
    close_unclean,
    complete,
    enter_table,
    take_back,
    take_turn,
    write_step,
)

LOCK = "L"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of a scenario."""

    name: JobName
    rule: OrderRule = field(default_factory=NoRule)
    absent_after_ms: int | None = None
    """-1: a predecessor without a live run counts as absent at once; the simulated clock stands still."""
    priority: int = 0
    aging_ms: int | None = None
    """How many turns of other jobs equal a priority of one; a simulated clock that runs counts turns."""
    writes: tuple[tuple[TableLocation, int], ...] = ((TableLocation("t"), 0),)
    """The writes of one batch, in order: table and step."""
    matches_nothing: frozenset[tuple[TableLocation, int]] = frozenset()
    """Writes whose statement finds nothing to change, so that Delta makes no commit."""
    tables_granted: tuple[TableLocation, ...] | None = None
    """Tables that the grant lists; None for all tables that the job writes."""
    has_many_batches: bool = False
    """Further batches run in the same turn."""
    enters_each_batch: bool = False
    """A table is entered again for each batch of the turn, not only before the first write."""

    @property
    def tables(self) -> tuple[TableLocation, ...]:
        """Returns the tables that the job writes."""
        return tuple(dict.fromkeys(table for table, _ in self.writes))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that a run finds in its checkpoint when it starts."""

    token_id: TokenId
    view: CheckpointView


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned micro-batch: its rows are fixed by `offsets/<number>`."""

    number: int
    rows: tuple[int, int]
    """First row, and the row after the last."""


@dataclass(frozen=True, slots=True)
class ReadCheckpoint(Effect[Checkpoint]):
    """Reads the job's checkpoint as it is now."""


@dataclass(frozen=True, slots=True)
class PlanBatch(Effect[Batch | None]):
    """Fixes the next batch, or takes the open batch; None where there is no data. Put-if-absent, as on a real checkpoint."""


@dataclass(frozen=True, slots=True)
class CreateTable(Effect[None]):
    """Creates the table, empty, if it does not exist."""

    table: TableLocation


@dataclass(frozen=True, slots=True)
class NoteStep(Effect[None]):
    """Notes that the job takes this write as done. For the simulator's checks; the world does not change."""

    write: tuple[TableLocation, int]


@dataclass(frozen=True, slots=True)
class WriteCommitLog(Effect[Literal["done", "exists"]]):
    """Spark writes `commits/<batch>`. "exists": another run was first, and the query fails."""

    token_id: TokenId
    batch: Batch


@dataclass(frozen=True, slots=True)
class Sleep(Effect[None]):
    """Waits for new data, or for the next run of the job."""


RunEnd = Literal["idle", "again", "paused", "session lost", "halt"]
BatchEnd = Literal["written", "again", "halt"]


def work(job: Job, session: SessionId) -> Steps[RunEnd]:
    """Runs the job's query whenever there is new data, until the session is lost or a person is needed: one process of the job."""
    attempt = 0
    while True:
        end = yield from run_job(job, session, Nonce(f"{session}.{attempt}"))
        if end == "idle":
            yield from perform(Sleep())
        elif end == "paused":
            yield from resumed(job.name)
        elif end != "again":
            return end
        attempt += 1


def resumed(name: JobName) -> Steps[None]:
    """Waits, as the supervisor does, until the job is not paused any more, without a request for a turn."""
    while True:
        stored = yield from perform(ReadRecord())
        if stored.record is None or name not in stored.record.paused:
            return
        yield from perform(WaitForChange(stored.version, "paused"))


def run_job(job: Job, session: SessionId, nonce: Nonce) -> Steps[RunEnd]:
    """Runs the query once: clears up what an earlier run left, then takes one turn for the data that the source has."""
    is_asking = False
    taken: GrantedTurn | SessionLost | NotGranted | None = None
    end: RunEnd = "again"
    try:
        checkpoint = yield from perform(ReadCheckpoint())
        yield from begin(job.name, checkpoint.view, session)
        batch = yield from perform(PlanBatch())
        if batch is None:
            yield from announce_idle(LOCK, job.name, session, _order(job), dict.fromkeys(job.tables, Version(0)))
            return "idle"
        is_asking = True
        taken = yield from take(job, session, nonce, checkpoint.token_id, batch)
        is_asking = False
        if isinstance(taken, SessionLost):
            return "session lost"
        if isinstance(taken, NotGranted):
            return "paused" if taken.is_paused else "again"
        done = yield from work_in_turn(job, taken, batch)
        if done == "written":
            return "again"
        end = done
    except LostTurn:
        end = "again"
    if is_asking and batch is not None:
        is_back = yield from take_back(nonce)
        if not is_back:
            # The turn had been granted: it is taken to learn its epoch, and closed as unclean below.
            taken = yield from take(job, session, nonce, checkpoint.token_id, batch)
    if isinstance(taken, GrantedTurn):
        yield from close_unclean(taken)
    return end


def take(
    job: Job, session: SessionId, nonce: Nonce, token_id: TokenId, batch: Batch
) -> Steps[GrantedTurn | SessionLost | NotGranted]:
    """Takes the turn for this batch."""
    granted = yield from take_turn(LOCK, _attempt(job, session, nonce, token_id, batch), _order(job))
    if isinstance(granted, Granted):
        return GrantedTurn(lock=LOCK, job=job.name, nonce=nonce, epoch=granted.epoch, token_id=token_id)
    return granted


def work_in_turn(job: Job, turn: GrantedTurn, batch: Batch) -> Steps[BatchEnd]:
    """Runs the batches of one turn, each with its commit log, then ends the turn cleanly."""
    entered: frozenset[TableLocation] = frozenset()
    while True:
        end = yield from write_batch(job, turn, batch, entered)
        if end != "written":
            return end
        entered = frozenset(job.tables)
        logged = yield from perform(WriteCommitLog(turn.token_id, batch))
        if logged == "exists":
            return "again"
        following = None
        if job.has_many_batches:
            following = yield from perform(PlanBatch())
        if following is None:
            yield from complete(turn)
            return "written"
        batch = following


def write_batch(job: Job, turn: GrantedTurn, batch: Batch, entered: frozenset[TableLocation]) -> Steps[BatchEnd]:
    """Does what the user's function does with one batch; enters each table before its first write."""
    here: frozenset[TableLocation] = frozenset() if job.enters_each_batch else entered
    at = 0
    while at < len(job.writes):
        table, step = job.writes[at]
        if table not in here:
            opened = yield from enter_table(turn, table, is_written=table in entered)
            if isinstance(opened, NoTable):
                yield from perform(CreateTable(table))
                continue
            if not isinstance(opened, Entered):
                return "again"
            here |= {table}
        token = Token(epoch=turn.epoch, batch=batch.number, step=step)
        mark = StepMark(name=f"step {step}", offsets_sha256=f"{batch.rows[0]}-{batch.rows[1]}")
        outcome = yield from write_step(table, turn.token_id, token, mark)
        if isinstance(outcome, OtherWork):
            return "halt"
        if isinstance(outcome, TableIsAhead):
            checkpoint = yield from perform(ReadCheckpoint())
            # Another run of the job finished this batch, or the checkpoint was reset to an older state.
            return "again" if checkpoint.view.last_committed >= batch.number else "halt"
        if not isinstance(outcome, Written | AlreadyApplied):
            return "again"
        if isinstance(outcome, Written):
            yield from perform(NoteStep((table, step)))
        at += 1
    return "written"


def _order(job: Job) -> Order:
    return Order(rule=job.rule, absent_after_ms=job.absent_after_ms, priority=job.priority, aging_ms=job.aging_ms)


def _attempt(job: Job, session: SessionId, nonce: Nonce, token_id: TokenId, batch: Batch) -> Attempt:
    holder = Holder(
        nonce=nonce,
        session=session,
        job=job.name,
        run=session,
        host="host",
        boot_id="boot",
        pid=1,
        pid_start=1,
        jvm_pid=None,
        jvm_start=None,
        token_ids=(token_id,),
        batch=batch.number,
        tables=job.tables if job.tables_granted is None else job.tables_granted,
        since_ms=0,
    )
    return Attempt(nonce=nonce, holder=holder)
