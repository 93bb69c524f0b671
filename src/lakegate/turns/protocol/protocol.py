"""The turn protocol: begin, take, enter a table, write a step, complete. Generators that yield effects and perform none.

Rules for editors:
- Every value that was read is stale by the next effect, unless a compare-and-set on its version confirms it.
- "unknown" is never rounded: go back to the top, read again, look for our own nonce.
- Every loop is `while`, never `for`, around an effect, and an effect stands alone in its statement: then the locals of a
  generator and its line are its whole state, which is what lets the simulator recognise a state that it has seen
  (tests/simulation/test_protocol_shape.py checks this).
- Outcomes of the protocol are returned; only faults are raised, by the code that answers the effects.

Source: docs/explanation/turns.md; each rule there names the hole that it closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakegate.effects import Steps, perform
from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation, TokenId, Version
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.effects import (
    Attempt,
    CommitEntry,
    CompareAndSet,
    FindMark,
    LiveSessions,
    NoteTurn,
    ReadRecord,
    ReadTokens,
    RunStatement,
    StepMark,
    WaitForChange,
    WallClock,
)
from lakegate.turns.protocol.fencing import (
    Applied,
    Behind,
    FencedBy,
    NotApplied,
    Token,
    highest_epoch,
    plan_entry,
    read_token,
)
from lakegate.turns.protocol.lock_record import Holder, LockRecord, Mark, Ticket
from lakegate.turns.protocol.ordering import AGING_MS, OrderRule

CONFLICTS_MAX = 20
"""How often a statement is retried after a conflict with a writer that takes no turns."""


# ------------------------------------------------------------------------------------------------------------- begin


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """The state of a job's checkpoint: the last batch in the commit log (-1: none), and whether a planned batch is open."""

    last_committed: int
    is_batch_open: bool


def begin(job: JobName, checkpoint: CheckpointView, session: SessionId | None = None) -> Steps[LockRecord | None]:
    """Cleans up after an earlier run of this job: closes its dead turn, and marks the turn as done if its batch had finished.

    Only the job itself can find out whether its lost turn had finished: the commit log is in its checkpoint. `session` belongs
    to this run, which has no turn now; a turn of it in the record comes from a restored older copy, and is closed, too.

    Returns:
        The record afterwards; None if the lock has none yet.
    """
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None:
            return None
        live = yield from perform(LiveSessions(record.holder))
        lost = record.job(job).lost
        held = record.holder
        if held is not None and held.job == job and (held.session == session or held.session not in live.ids):
            yield from perform(CompareAndSet(transitions.close(record), stored.version))
        elif (
            lost is not None
            and lost[1] is not None
            and checkpoint.last_committed >= lost[1]
            and not checkpoint.is_batch_open
        ):
            now_ms = yield from perform(WallClock())
            yield from perform(CompareAndSet(transitions.done_late(record, job, now_ms=now_ms), stored.version))
        else:
            return record


# -------------------------------------------------------------------------------------------------------------- take


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The position of a job in the order of the lock."""

    rule: OrderRule
    absent_after_ms: int | None
    priority: int = 0
    """Of the jobs that may go, the job with the highest priority goes."""
    aging_ms: int | None = AGING_MS
    """Milliseconds of waiting that raise the priority by one; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The turn is ours."""

    epoch: Epoch
    predecessor: JobName | None
    """The job whose turn was completed last before this turn."""
    asked_at_ms: int
    since_ms: int
    behind_ms: int = 0
    """How far this machine's clock is behind a time that another machine wrote into the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotGranted:
    """The turn was not granted in time; the ticket is taken back."""

    reason: str
    holder: Holder | None
    is_paused: bool = False
    """A person has paused the job: asking again is useless before the job is resumed."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The store no longer counts this run as alive."""


def take_turn(lock: str, attempt: Attempt, order: Order) -> Steps[Granted | NotGranted | SessionLost]:
    """Asks for the turn, waits, and has it granted; the compare-and-set that grants also assigns the epoch.

    A paused job does not ask, and a job that is paused while it waits is refused. A record whose epoch is below a known epoch
    is an older copy, and is first raised above that epoch (`transitions.outdated`). The turn counts from the moment when its mark
    is stored: if an older copy gave two turns the same epoch, only one of them can store its mark.
    """
    me, nonce, asked_at_ms = attempt.holder, attempt.nonce, 0
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None:
            top = yield from _tables_epoch(me.tables)
            live = yield from perform(LiveSessions(None))
            top = max(top, _epoch_of(live.mark), attempt.known_epoch)
            yield from perform(CompareAndSet(transitions.begin_record(lock, top), stored.version))
            continue
        if record.is_held_by(nonce):
            mine = Mark(record.epoch, nonce)
            noted = yield from perform(NoteTurn(mine))
            if noted == mine:
                return _granted(record, asked_at_ms)
            yield from perform(CompareAndSet(transitions.outdated(record, noted.epoch), stored.version))
            continue
        pause = record.paused.get(me.job)
        if pause is not None:
            is_back = yield from take_back(nonce)
            if is_back:
                return NotGranted(reason=f"{me.job} is {pause}", holder=record.holder, is_paused=True)
            continue
        live = yield from perform(LiveSessions(record.holder))
        if me.session not in live.ids:
            return SessionLost()
        known = max(attempt.known_epoch, _epoch_of(live.mark))
        if known > record.epoch or record.is_older_than(live.mark):
            yield from perform(CompareAndSet(transitions.outdated(record, known), stored.version))
            continue
        held = record.holder
        if held is not None and (held.session == me.session or held.session not in live.ids):
            yield from perform(CompareAndSet(transitions.close(record), stored.version))
            continue
        now_ms = yield from perform(WallClock())
        asked = record
        if record.ticket(nonce) is None:
            asked_at_ms = now_ms
            ticket = Ticket(
                job=me.job,
                session=me.session,
                nonce=nonce,
                asked_at_ms=now_ms,
                priority=order.priority,
                aging_ms=order.aging_ms,
            )
            asked = transitions.ask(record, ticket, order.rule, order.absent_after_ms)
        waits = transitions.reason_to_wait(asked, nonce, live, now_ms)
        if waits is None:  # a job that need not wait asks and is granted in one step
            top = yield from _tables_epoch(me.tables)
            if top > record.epoch:
                yield from perform(CompareAndSet(transitions.outdated(record, top), stored.version))
                continue
            granted = transitions.grant(asked, replace(me, since_ms=now_ms))
            yield from perform(CompareAndSet(granted, stored.version))
            continue
        if asked is not record:
            yield from perform(CompareAndSet(asked, stored.version))
            continue
        waited = yield from perform(WaitForChange(stored.version, waits.reason))
        if waited == "timeout":
            is_back = yield from take_back(nonce)
            if is_back:
                return NotGranted(reason=waits.reason, holder=record.holder)


def take_back(nonce: Nonce) -> Steps[bool]:
    """Takes the ticket back; False if the turn is ours already (a grant whose reply was lost)."""
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None:
            return True
        if record.is_held_by(nonce):
            return False
        if record.ticket(nonce) is None:
            return True
        yield from perform(CompareAndSet(transitions.give_up(record, nonce), stored.version))


def _tables_epoch(tables: tuple[TableLocation, ...]) -> Steps[Epoch]:
    """Returns the highest epoch that the tables have seen.

    An epoch above the record's shows that the record went back, or that the table came from another lock: its holders may have
    left no trace.
    """
    top, rest = Epoch(0), tables
    while rest:
        reading = yield from perform(ReadTokens(rest[0]))
        top, rest = max(top, highest_epoch(reading.tokens)), rest[1:]
    return top


def _epoch_of(mark: Mark | None) -> Epoch:
    return Epoch(0) if mark is None else mark.epoch


def _granted(record: LockRecord, asked_at_ms: int) -> Granted:
    last = max(((state.done, name) for name, state in record.jobs.items() if state.done), default=None)
    since_ms = record.holder.since_ms if record.holder else asked_at_ms
    return Granted(
        epoch=record.epoch,
        predecessor=last[1] if last else None,
        asked_at_ms=asked_at_ms,
        since_ms=since_ms,
        behind_ms=max(0, transitions.last_change_ms(record) - since_ms),
    )


# ------------------------------------------------------------------------------------------------------------- enter


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedTurn:
    """A granted turn, as the later steps refer to it."""

    lock: str
    job: JobName
    nonce: Nonce
    epoch: Epoch
    token_id: TokenId


@dataclass(frozen=True, slots=True)
class NotHolder:
    """The record no longer names this turn as the holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """The table is open to this turn; every snapshot of it must be taken from here on.

    `version`: the version of the entry commit, or None where nothing had to be raised.
    """

    version: Version | None


@dataclass(frozen=True, slots=True)
class NoTable:
    """The table does not exist: create it, empty, and then enter it.

    A first write that creates the table cannot be fenced: an earlier turn may create the table just before, and that write is
    then added on top, even of the same batch (scenario `missing-table-crash` of the simulator).
    """


def enter_table(
    turn: GrantedTurn, table: TableLocation, *, is_written: bool, raises_own: bool = False
) -> Steps[Entered | NoTable | FencedBy | NotHolder]:
    """Makes the table refuse every earlier turn, before this turn reads or writes it.

    Args:
        turn: My turn.
        table: One of the turn's tables; a table that the grant does not list is added first.
        is_written: This turn has committed to the table before.
        raises_own: See `plan_entry`.
    """
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None or not _is_mine(record, turn):
            return NotHolder()
        if record.holder is not None and table not in record.holder.tables:
            yield from perform(CompareAndSet(transitions.add_table(record, table), stored.version))
            continue
        reading = yield from perform(ReadTokens(table))
        if reading.version < 0:
            return NoTable()
        is_known = table in record.tables
        raised = plan_entry(
            reading.tokens,
            lock=turn.lock,
            epoch=turn.epoch,
            mine=turn.token_id,
            in_doubt=record.doubts(table),
            is_known=is_known,
            raises_own=raises_own,
            is_written=is_written,
        )
        if isinstance(raised, FencedBy):
            return raised
        if not raised:
            return Entered(version=None)
        committed = yield from perform(CommitEntry(table, reading.version, tuple(raised.items())))
        if committed == "done":
            break
    is_confirmed = yield from _confirm(turn, table, frozenset(raised), is_whole=not is_known)
    return Entered(version=Version(reading.version + 1)) if is_confirmed else NotHolder()


def _confirm(turn: GrantedTurn, table: TableLocation, raised: frozenset[TokenId], *, is_whole: bool) -> Steps[bool]:
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None or not _is_mine(record, turn):
            return False
        confirmed = transitions.confirm_fence(record, table, raised, is_whole=is_whole)
        if confirmed == record:
            return True
        yield from perform(CompareAndSet(confirmed, stored.version))


def _is_mine(record: LockRecord, turn: GrantedTurn) -> bool:
    return record.is_held_by(turn.nonce) and record.epoch == turn.epoch


# ------------------------------------------------------------------------------------------------------------- write


@dataclass(frozen=True, slots=True)
class Written:
    """The statement ran; its changes are in the table."""


@dataclass(frozen=True, slots=True)
class AlreadyApplied:
    """An earlier run had written this step."""


@dataclass(frozen=True, slots=True)
class OtherWork:
    """The table holds something else under this token: other offsets or another step. Nothing was skipped."""

    found: StepMark


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Every retry met a conflicting commit of a writer that takes no turns."""

    attempts: int


def look(
    table: TableLocation, token_id: TokenId, token: Token, mark: StepMark
) -> Steps[NotApplied | AlreadyApplied | OtherWork | FencedBy | Behind]:
    """Checks whether the table holds a step already, and if so, whether it is this step with these offsets."""
    before = yield from perform(ReadTokens(table))
    reading = read_token(before.tokens.get(token_id), token)
    if not isinstance(reading, Applied):
        return reading
    found = yield from perform(FindMark(table, token_id, token))
    if found is not None and found != mark:
        return OtherWork(found)
    return AlreadyApplied()


def write_step(
    table: TableLocation, token_id: TokenId, token: Token, mark: StepMark
) -> Steps[Written | AlreadyApplied | OtherWork | Conflicted | FencedBy | Behind]:
    """Writes a step exactly once, whatever happened before and however many others are writing.

    The token is read again after the statement, even after a statement that wrote nothing: stock Delta skips a write
    *silently* when the stored number is equal or larger.
    """
    attempts = 0
    while attempts < CONFLICTS_MAX:
        reading = yield from look(table, token_id, token, mark)
        if not isinstance(reading, NotApplied):
            return reading
        outcome = yield from perform(RunStatement(table, token_id, token, mark))
        if outcome == "conflict":
            attempts += 1
            continue
        fence = yield from check_fence(table, token_id, token.epoch)
        if fence is not None:
            return fence
        return Written()
    return Conflicted(attempts)


def check_fence(table: TableLocation, token_id: TokenId, epoch: Epoch) -> Steps[FencedBy | None]:
    """Checks whether a later turn has raised my id on the table: then a write that seemed done may have been skipped."""
    after = yield from perform(ReadTokens(table))
    reading = read_token(after.tokens.get(token_id), Token(epoch=epoch, batch=-1))
    return reading if isinstance(reading, FencedBy) else None


# ---------------------------------------------------------------------------------------------------------- complete


def complete(turn: GrantedTurn) -> Steps[bool]:
    """Ends the turn clean. True once the record shows it; False if another process closed the turn first."""
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None or not _is_mine(record, turn):
            return record is not None and record.job(turn.job).done >= turn.epoch
        now_ms = yield from perform(WallClock())
        yield from perform(CompareAndSet(transitions.complete(record, now_ms=now_ms), stored.version))


def close_unclean(turn: GrantedTurn) -> Steps[bool]:
    """Ends the turn in any other way; one of its transactions may still be running, so its ids are marked in doubt.

    False if another process had closed the turn before: the turn had ended then, not now.
    """
    was_mine = False
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None or not _is_mine(record, turn):
            return was_mine
        was_mine = True
        yield from perform(CompareAndSet(transitions.close(record), stored.version))


def announce_idle(
    lock: str,
    job: JobName,
    session: SessionId,
    order: Order,
    idle_at: Mapping[TableLocation, Version],
    run: str | None = None,
) -> Steps[bool]:
    """Records that the job has nothing left to do up to these versions. Creates the record if there is none.

    `run` names the run until idle in which the job is idle.

    False, and nothing recorded, if `session` is lost: another run of the job may have found work, and be in the middle of it
    (scenario `after-idle-zombie` of the simulator).
    """
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None:
            top = yield from _tables_epoch(tuple(idle_at))
            live = yield from perform(LiveSessions(None))
            top = max(top, _epoch_of(live.mark))
            yield from perform(CompareAndSet(transitions.begin_record(lock, top), stored.version))
            continue
        if transitions.is_said(record, job, idle_at, run):
            return True
        live = yield from perform(LiveSessions(record.holder))
        if session not in live.ids:
            return False
        now_ms = yield from perform(WallClock())
        idle = transitions.go_idle(record, job, idle_at, order.rule, order.absent_after_ms, now_ms=now_ms, run=run)
        yield from perform(CompareAndSet(idle, stored.version))


def find_work(job: JobName, session: SessionId) -> Steps[bool]:
    """Withdraws the idle note; False, and nothing changed, if `session` is lost: the note may belong to another run."""
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None or record.job(job).idle_since_ms is None:
            return True
        live = yield from perform(LiveSessions(record.holder))
        if session not in live.ids:
            return False
        yield from perform(CompareAndSet(transitions.find_work(record, job), stored.version))


def leave(job: JobName, session: SessionId, run: str) -> Steps[bool]:
    """Records that the job has left this run until idle; False, and nothing recorded, if `session` is lost.

    In that case another process of the job may be at work in the same run, and the others must wait for it.
    """
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record is None:
            return True
        left = transitions.leave(record, job, run)
        if left == record:
            return True
        live = yield from perform(LiveSessions(record.holder))
        if session not in live.ids:
            return False
        yield from perform(CompareAndSet(left, stored.version))
