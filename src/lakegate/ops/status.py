"""`lakegate status`: the holder of the turn, the waiting jobs with reasons, the state of each job; from one lock record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from lakegate.ids import JobName
from lakegate.turns.lateness import is_late, overdue_ms
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.lock_record import JobState, LockRecord
from lakegate.turns.protocol.ordering import OrderRule, describe, waits_for
from lakegate.turns.protocol.transitions import Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStatus:
    """The turn in progress."""

    job: str
    epoch: int
    since_ms: int
    host: str
    pid: int
    batch: int | None
    is_alive: bool
    """False: its process is gone, and the next job that asks closes the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingStatus:
    """A job in the queue."""

    job: str
    asked_at_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The state of a job on the lock."""

    job: str
    rule: str
    is_alive: bool
    turns: int
    last_epoch: int | None
    completed_at_ms: int | None
    idle_since_ms: int | None
    idle_at: Mapping[str, int]
    lost: tuple[int, int | None] | None
    """Epoch and batch of a turn that ended unclean; the job's next run finds out its outcome."""
    in_doubt: int
    """Token ids of the job that an unclean turn may still write with, until the next turn fences them."""
    priority: int = 0
    every_ms: int | None = None
    """Its pace; None: again as soon as it has work."""
    paused: str | None = None
    """The person who paused the job, and the reason."""
    paused_since_ms: int | None = None
    overdue_ms: int = 0
    """Time since its last completed turn, minus its pace. 0 for an idle job: it has nothing left to do."""
    is_late: bool = False
    """Overdue by more than its pace: a whole turn was missed. Not while it is paused."""
    waiting_for: str | None = None
    """The reason for waiting, if it has asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockStatus:
    """The state of a lock."""

    lock: str
    epoch: int
    holder: HolderStatus | None
    queue: tuple[WaitingStatus, ...]
    jobs: tuple[JobStatus, ...]
    in_doubt: tuple[tuple[str, int], ...]
    """Token id and epoch of every unclean turn that is not fenced yet."""
    next: str | None = None
    """The job that has the turn next, if the turn in progress ends now and nothing else changes."""


def lock_status(
    lock: str,
    record: LockRecord | None,
    live: Sessions,
    now_ms: int,
    rules: Mapping[str, OrderRule],
    every_ms: Mapping[str, int | None] = MappingProxyType({}),
    priorities: Mapping[str, int] = MappingProxyType({}),
) -> LockStatus:
    """Converts a lock record to the terms of `lakegate status`.

    Args:
        lock: The name of the lock.
        record: None where no job has asked yet.
        live: The runs that are alive.
        now_ms: The wall clock.
        rules: Job → its rule in the file; jobs of the record that are not in it are shown with the rule that they registered.
        every_ms: Job → its pace in the file.
        priorities: Job → its priority in the file.
    """

    def of(name: JobName) -> JobStatus:
        made = _job(name, record, live, rules)
        return _late(replace(made, every_ms=every_ms.get(name), priority=priorities.get(name, 0)), record, live, now_ms)

    if record is None:
        jobs = tuple(of(JobName(name)) for name in rules)
        return LockStatus(lock=lock, epoch=0, holder=None, queue=(), jobs=jobs, in_doubt=())
    held = record.holder
    holder = (
        None
        if held is None
        else HolderStatus(
            job=held.job,
            epoch=record.epoch,
            since_ms=held.since_ms,
            host=held.host,
            pid=held.pid,
            batch=held.batch,
            is_alive=held.session in live.ids,
        )
    )
    queue = tuple(
        WaitingStatus(job=ticket.job, asked_at_ms=ticket.asked_at_ms, reason=_reason(record, ticket.job, live, now_ms))
        for ticket in record.tickets
    )
    names = [JobName(name) for name in dict.fromkeys([*rules, *record.jobs])]
    free = record
    if held is not None:
        is_alive = held.session in live.ids
        free = transitions.complete(record, now_ms=now_ms) if is_alive else transitions.close(record)
    first = transitions.first_to_go(free, live, now_ms)
    return LockStatus(
        lock=lock,
        epoch=record.epoch,
        holder=holder,
        queue=queue,
        jobs=tuple(of(name) for name in names),
        in_doubt=tuple((entry.token_id, entry.epoch) for entry in record.in_doubt),
        next=None if first is None else first.job,
    )


def _late(job: JobStatus, record: LockRecord | None, live: Sessions, now_ms: int) -> JobStatus:
    """Returns the job with its current waiting reason, pause and lateness."""
    if record is None:
        return job
    ticket = next((ticket for ticket in record.tickets if ticket.job == job.job), None)
    pause = record.paused.get(JobName(job.job))
    waiting_for = None if ticket is None else _reason(record, ticket.job, live, now_ms)
    return replace(
        job,
        paused=None if pause is None else str(pause),
        paused_since_ms=None if pause is None else pause.since_ms,
        overdue_ms=overdue_ms(record, job.job, job.every_ms, now_ms),
        is_late=is_late(record, job.job, job.every_ms, now_ms),
        waiting_for=waiting_for,
    )


def _reason(record: LockRecord, job: JobName, live: Sessions, now_ms: int) -> str:
    """Returns the reason of the rule where there is one: it is more precise than "another job has the turn"."""
    ticket = next(ticket for ticket in record.tickets if ticket.job == job)
    if ticket.session not in live.ids:
        return "its run has ended, so it does not count"
    rule, absent_after_ms = record.rule(job)
    reason = waits_for(rule, job, record.views(live.jobs), now_ms=now_ms, absent_after_ms=absent_after_ms)
    if reason is not None:
        return reason
    waits = transitions.reason_to_wait(record, ticket.nonce, live, now_ms)
    return "is next" if waits is None else waits.reason


def _job(name: JobName, record: LockRecord | None, live: Sessions, rules: Mapping[str, OrderRule]) -> JobStatus:
    state = JobState() if record is None else record.job(name)
    rule = rules[name] if record is None or name in rules else record.rule(name)[0]
    doubts = () if record is None or state.lost is None else record.in_doubt
    return JobStatus(
        job=name,
        rule=describe(rule),
        is_alive=name in live.jobs,
        turns=state.turns,
        last_epoch=state.done or None,
        completed_at_ms=state.completed_at_ms,
        idle_since_ms=state.idle_since_ms,
        idle_at={str(table): int(version) for table, version in state.idle_at.items()},
        lost=state.lost,
        in_doubt=sum(1 for entry in doubts if state.lost is not None and entry.epoch == state.lost[0]),
    )
