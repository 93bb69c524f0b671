"""Parts of the simulated world (lock record, tables, checkpoints, processes, JVM transactions) and its invariants.

A state is a tuple of plain values, so that equal worlds are one state. A table is not its log but the result of the log
(tokens, effects, latest writer); a transaction in flight stores whether a later commit has beaten it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from harness.jobs import LOCK, Batch, Job
from lakegate.ids import Epoch, JobName, SessionId, TableLocation, TokenId
from lakegate.turns.protocol.effects import RunStatement, StepMark
from lakegate.turns.protocol.fencing import Token, lock_token, query_token, unpack
from lakegate.turns.protocol.lock_record import Holder, LockRecord, Mark, Ticket
from lakegate.turns.protocol.ordering import After, waits_for

Fault = Literal[
    "crash", "expire", "lost", "fail", "giveup", "foreign", "wipe", "ckdel", "rewind", "pause", "broken", "restored"
]
"""`pause`, `broken` and `restored` are actions of an operator: pause the first job; break the lock, whatever its holder does;
take a copy of the record at any time and restore it at any other."""
FAULTS: tuple[Fault, ...] = (
    *("crash", "expire", "lost", "fail", "giveup", "foreign", "wipe", "ckdel", "rewind"),
    *("pause", "broken", "restored"),
)


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The jobs of a world, their start, and how often each fault may happen."""

    name: str
    jobs: tuple[Job, ...]
    faults: Mapping[Fault, int] = field(default_factory=dict)
    rows: int = 1
    """Rows that wait for each job at the start; a batch takes one."""
    is_first_dry: bool = False
    """The first job has no rows at the start."""
    arrivals: int = 0
    """Rows that arrive for the first job later."""
    start: Literal["known", "new"] = "known"
    """Whether tables and ids are known to the lock from epoch 1; otherwise nothing was ever written."""
    missing_tables: frozenset[TableLocation] = frozenset()
    """Tables that the first write creates."""
    takes_any_rows: bool = False
    """Whether a batch may take one row or all; otherwise a batch planned again has the same rows by luck."""
    is_fine: bool = False
    """Whether every effect is a transition of its own, instead of only those between which order matters."""
    zombies_go_on: bool = False
    """Whether a process whose session is lost begins further runs, until it notices by itself."""
    strict_may_starve: bool = False
    """Whether waiting under `strict` for a job that has no data is no dead end: more data of that job would end the wait."""
    bounds_waiting: bool = False
    """Whether to check that an eligible ticket sees at most `grants_max` other grants."""
    has_clock: bool = False
    """Whether the clock counts turns; otherwise it stands still."""
    expects: str = ""
    """Part of the violation that is expected; empty if none is."""

    @property
    def tables(self) -> tuple[TableLocation, ...]:
        """Returns every table that some job writes."""
        return tuple(dict.fromkeys(table for job in self.jobs for table in job.tables))

    @property
    def may_go_back(self) -> bool:
        """Returns whether the record may be replaced by an older copy."""
        return "restored" in self.faults

    def grants_max(self, job: JobName) -> int:
        """Returns how many turns other jobs may have while a ticket of this job is eligible: one each, and as many more as their
        priority allows until waiting has compensated for the difference. All jobs of the scenario age alike.
        """
        mine = next(one for one in self.jobs if one.name == job)
        others = (one for one in self.jobs if one.name != job)
        return sum(1 + max(0, (mine.aging_ms or 0) * (one.priority - mine.priority) - 1) for one in others)


class Table(NamedTuple):
    """A Delta table."""

    version: int
    tokens: tuple[tuple[TokenId, int], ...]
    effects: frozenset[tuple[str, int, int]]
    """(query, row, step) of each applied write."""
    marks: frozenset[tuple[TokenId, int, int, StepMark]]
    last: tuple[int, str]
    """Epoch and session of the latest data commit or entry commit."""


class Source(NamedTuple):
    """A job's checkpoint, and the rows that its source has."""

    query: int
    """Rises when the checkpoint is deleted and a new one is made."""
    offsets: tuple[tuple[int, int], ...]
    committed: int
    """Number of batches in the commit log."""
    rows: int

    @property
    def is_finished(self) -> bool:
        """Returns whether every row is in a batch, and every batch in the commit log."""
        return self.committed == len(self.offsets) and self.planned == self.rows

    @property
    def planned(self) -> int:
        """Returns how many rows are in a batch."""
        return self.offsets[-1][1] if self.offsets else 0


class Transaction(NamedTuple):
    """A Delta transaction that runs in a JVM; it may commit after its Python is gone."""

    table: int
    token_id: TokenId
    number: int
    effects: frozenset[tuple[str, int, int]]
    mark: StepMark
    session: SessionId
    is_creating: bool
    is_beaten: bool
    """Whether a commit after its snapshot makes Delta refuse it."""


class Process(NamedTuple):
    """A Python process of a job."""

    session: SessionId
    local: int
    flight: Transaction | None
    watched: tuple[int, bool] | None
    """Table of a statement that wrote nothing, and whether another turn has written there since its snapshot."""


class Ghost(NamedTuple):
    """State that only the checks read."""

    opened: tuple[bool, ...]
    """Per job: whether it was granted a turn for a batch that is not in the commit log yet."""
    finished_since: frozenset[tuple[int, int]]
    """(job, other): the other finished a batch since the job's last completed turn."""
    waited: frozenset[tuple[str, int]]
    """(nonce, grants to others since it became eligible)."""


class State(NamedTuple):
    """The world at one instant."""

    record: int
    live: frozenset[SessionId]
    tables: tuple[Table, ...]
    sources: tuple[Source, ...]
    processes: tuple[Process, ...]
    orphans: frozenset[Transaction]
    budgets: tuple[int, ...]
    """Per fault, then arrivals."""
    started: tuple[int, ...]
    """Per job: how many processes it has had."""
    ghost: Ghost
    mark: Mark | None = None
    """The turn of the highest epoch that was noted outside the record; tracked only where a record may be restored."""
    copy: int | None = None
    """The record of which a copy was taken."""


def token_of(job: JobName, query: int) -> TokenId:
    """Returns the token id of a job's n-th checkpoint."""
    return query_token(f"{job}.{query}")


def first_record(scenario: Scenario) -> LockRecord | None:
    """Returns the lock record at the start."""
    if scenario.start == "new":
        return None
    known = {table: Epoch(1) for table in scenario.tables if table not in scenario.missing_tables}
    return LockRecord(lock=LOCK, epoch=Epoch(1), tables=known)


def first_tables(scenario: Scenario) -> tuple[Table, ...]:
    """Returns the tables at the start."""
    number = Token(epoch=Epoch(1), batch=-1).pack()
    ids = [lock_token(LOCK), *(token_of(job.name, 0) for job in scenario.jobs)]
    known = tuple(sorted((token_id, number) for token_id in ids)) if scenario.start == "known" else ()
    nothing: frozenset[tuple[str, int, int]] = frozenset()
    return tuple(
        Table(-1 if table in scenario.missing_tables else 0, tokens, nothing, frozenset(), (0, ""))
        for table in scenario.tables
        for tokens in [() if table in scenario.missing_tables else known]
    )


def begin_transaction(
    execute: RunStatement, job: Job, tables: tuple[Table, ...], place: int, by: SessionId
) -> Transaction:
    """Begins a JVM transaction: takes its snapshot and starts to write."""
    first, end = (int(row) for row in str(execute.mark.offsets_sha256).split("-"))
    step = execute.token.step
    rows = range(first, end) if (execute.table, step) not in job.matches_nothing else ()
    return Transaction(
        table=place,
        token_id=execute.token_id,
        number=execute.token.pack(),
        effects=frozenset((execute.token_id, row, step) for row in rows),
        mark=execute.mark,
        session=by,
        is_creating=tables[place].version < 0,
        is_beaten=False,
    )


def commit(state: State, ours: Transaction) -> State:
    """Returns the world after Delta has put this transaction's commit.

    Raises:
        Violation: an effect is applied twice, or the data of a turn come after a later turn has begun on the table.
    """
    table = state.tables[ours.table]
    token = unpack(ours.number)
    if table.last[0] > token.epoch or (table.last[0] == token.epoch and table.last[1] != ours.session):
        raise Violation("turn isolation: data of an older turn after a newer one began on the table")
    if table.effects & ours.effects:
        raise Violation("effect applied twice")
    after = Table(
        version=table.version + 1,
        tokens=tuple(sorted({**dict(table.tokens), ours.token_id: ours.number}.items())),
        effects=table.effects | ours.effects,
        marks=table.marks | {(ours.token_id, token.batch, token.step, ours.mark)},
        last=(token.epoch, ours.session),
    )
    return publish(state, ours.table, after, frozenset((ours.token_id,)), data_of=ours.session)


def commit_entry(state: State, place: int, raised: tuple[tuple[TokenId, int], ...], by: SessionId) -> State:
    """Returns the world after an entry commit."""
    table = state.tables[place]
    epoch = max(unpack(number).epoch for _, number in raised)
    after = table._replace(
        version=table.version + 1,
        tokens=tuple(sorted({**dict(table.tokens), **dict(raised)}.items())),
        last=max(table.last, (epoch, by)),
    )
    return publish(state, place, after, frozenset(token_id for token_id, _ in raised), data_of=None)


def commit_foreign(state: State, place: int) -> State:
    """Returns the world after a writer without turns has committed a change that conflicts with all others."""
    table = state.tables[place]
    ids = frozenset(
        transaction.token_id
        for transaction in (*state.orphans, *(process.flight for process in state.processes))
        if transaction is not None
    )
    return publish(state, place, table._replace(version=table.version + 1), ids, data_of=None)


def publish(state: State, place: int, after: Table, ids: frozenset[TokenId], *, data_of: SessionId | None) -> State:
    """Gives the table its next version; notes in transactions in flight whether it beats them."""

    def seen(transaction: Transaction) -> Transaction:
        is_hit = transaction.table == place and (transaction.is_creating or transaction.token_id in ids)
        return transaction._replace(is_beaten=True) if is_hit else transaction

    processes = []
    for process in state.processes:
        flight, watched = process.flight, process.watched
        if flight is not None:
            flight = seen(flight)
        if watched is not None and watched[0] == place and data_of not in (None, process.session):
            watched = (place, True)
        is_same = flight is process.flight and watched is process.watched
        processes.append(process if is_same else process._replace(flight=flight, watched=watched))
    return state._replace(
        tables=(*state.tables[:place], after, *state.tables[place + 1 :]),
        processes=tuple(processes),
        orphans=frozenset(orphan for orphan in state.orphans if not seen(orphan).is_beaten),
    )


def check_commit_log(state: State, scenario: Scenario, job: Job, query: int, batch: Batch) -> None:
    """Checks that the tables contain every batch that the commit log marks as done.

    Raises:
        Violation: it is not.
    """
    for table, step in job.writes:
        if (table, step) in job.matches_nothing:
            continue
        needed = {(token_of(job.name, query), row, step) for row in range(*batch.rows)}
        if needed - state.tables[scenario.tables.index(table)].effects:
            raise Violation("marked done in the commit log, effect not in the table")


def check_holders(state: State, writing: list[SessionId]) -> None:
    """Checks that at most one of the sessions that write in a turn is alive.

    Raises:
        Violation: two are.
    """
    if len(writing) > 1 and sum(session in state.live for session in writing) > 1:
        raise Violation("two live holders")


def time_of(record: LockRecord | None, scenario: Scenario) -> int:
    """Returns the time that the clock shows."""
    return record.epoch if record is not None and scenario.has_clock else 0


def as_asked(before: LockRecord, after: LockRecord, granted: Holder, job: Job) -> LockRecord:
    """Returns the record on which the turn was granted: with the ticket, even if request and grant were one step."""
    if before.ticket(granted.nonce) is not None:
        return before
    last = Ticket(
        job=granted.job, session=granted.session, nonce=granted.nonce, asked_at_ms=granted.since_ms,
        priority=job.priority, aging_ms=job.aging_ms,
    )  # fmt: skip
    return replace(after, holder=None, tickets=(*after.tickets, last))


def check_rank(record: LockRecord, let_in: frozenset[str], granted: Holder) -> None:
    """Checks that the eligible ticket of highest rank goes, first come first served among equals, and never a paused job.

    Raises:
        Violation: another should have gone.
    """
    if granted.job in record.paused:
        raise Violation(f"pause: {granted.job} is paused, and has the turn")
    now = max(
        [ticket.asked_at_ms for ticket in record.tickets]
        + [time for state in record.jobs.values() for time in (state.completed_at_ms, state.idle_since_ms) if time]
    )
    best, first = -1.0, ""
    for ticket in record.tickets:
        if ticket.nonce in let_in or ticket.nonce == granted.nonce:  # its session may have ended since it looked
            rank = ticket.priority + (now - ticket.asked_at_ms) / (ticket.aging_ms or 10**9)
            if rank > best + 1e-6:
                best, first = rank, ticket.nonce
    if first != granted.nonce:
        raise Violation(f"priority: {granted.nonce} goes before {first}")


def eligible(record: LockRecord | None, live: frozenset[SessionId], jobs: frozenset[JobName]) -> frozenset[str]:
    """Returns the nonces of the live tickets whose rule lets them in."""
    if record is None:
        return frozenset()
    views = record.views(jobs)
    found = set()
    for ticket in record.tickets:
        rule, absent_after_ms = record.rule(ticket.job)
        reason = waits_for(rule, ticket.job, views, now_ms=0, absent_after_ms=absent_after_ms)
        if ticket.session in live and reason is None and ticket.job not in record.paused:
            found.add(ticket.nonce)
    return frozenset(found)


def granted_to(before: LockRecord | None, after: LockRecord) -> JobName | None:
    """Returns the job to which this change of the record gives the turn.

    Raises:
        Violation: the epoch does not rise.
    """
    if after.holder is None or (before is not None and before.is_held_by(after.holder.nonce)):
        return None
    if before is not None and after.epoch <= before.epoch:
        raise Violation(f"epoch {after.epoch} granted after epoch {before.epoch}")
    return after.holder.job


def completed_by(before: LockRecord | None, after: LockRecord) -> JobName | None:
    """Returns the job whose turn this change of the record completes."""
    if before is None or before.holder is None or after.holder is not None:
        return None
    job = before.holder.job
    return job if after.job(job).done == before.epoch else None


def check_order(ghost: Ghost, place: int, jobs: tuple[Job, ...]) -> None:
    """Checks that a job under `after` is not let in before a predecessor's unfinished batch is done.

    Raises:
        Violation: it is.
    """
    rule = jobs[place].rule
    if not isinstance(rule, After):
        return
    names = [job.name for job in jobs]
    over = [
        ghost.opened[other] and (place, other) not in ghost.finished_since
        for other in (names.index(JobName(name)) for name in rule.jobs)
    ]
    if any(over) if rule.mode == "all" else all(over):
        raise Violation("order: let in while the predecessor has an opened, unfinished batch and none finished since")
