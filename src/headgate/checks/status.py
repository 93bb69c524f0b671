"""`headgate status`: who has the turn, who waits and why, what each job has done; from one lock record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headgate.core.ids import JobName
from headgate.core.turns import moves
from headgate.core.turns.moves import Sessions
from headgate.core.turns.order import OrderRule, describe, waits_for
from headgate.core.turns.record import JobState, LockRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderStatus:
    """The turn that is on."""

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
    """What one job has done on the lock."""

    job: str
    rule: str
    is_alive: bool
    turns: int
    last_epoch: int | None
    completed_at_ms: int | None
    idle_since_ms: int | None
    idle_at: Mapping[str, int]
    lost: tuple[int, int | None] | None
    """Epoch and batch of a turn that ended unclean; the job's next run finds out what became of it."""
    in_doubt: int
    """Token ids of the job that an unclean turn may still write with, until the next turn fences them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockStatus:
    """One lock."""

    lock: str
    epoch: int
    holder: HolderStatus | None
    queue: tuple[WaitingStatus, ...]
    jobs: tuple[JobStatus, ...]
    in_doubt: tuple[tuple[str, int], ...]
    """Token id and epoch of every unclean turn that is not fenced yet."""


def lock_status(
    lock: str, record: LockRecord | None, live: Sessions, now_ms: int, rules: Mapping[str, OrderRule]
) -> LockStatus:
    """What the record says, in the terms of `headgate status`.

    Args:
        lock: Its name.
        record: None where no job has asked yet.
        live: Who is alive.
        now_ms: The wall clock.
        rules: Job → its rule in the file; jobs of the record that are not in it are shown with the rule that they registered.
    """
    if record is None:
        jobs = tuple(_job(JobName(name), None, live, rules) for name in rules)
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
    return LockStatus(
        lock=lock,
        epoch=record.epoch,
        holder=holder,
        queue=queue,
        jobs=tuple(_job(name, record, live, rules) for name in names),
        in_doubt=tuple((entry.token_id, entry.epoch) for entry in record.in_doubt),
    )


def _reason(record: LockRecord, job: JobName, live: Sessions, now_ms: int) -> str:
    """The rule's reason where there is one: it says more than that somebody else has the turn just now."""
    ticket = next(ticket for ticket in record.tickets if ticket.job == job)
    if ticket.session not in live.ids:
        return "its run has ended, so it counts for nothing"
    rule, absent_after_ms = record.rule(job)
    reason = waits_for(rule, job, record.views(live.jobs), now_ms=now_ms, absent_after_ms=absent_after_ms)
    if reason is not None:
        return reason
    waits = moves.reason_to_wait(record, ticket.nonce, live, now_ms)
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
