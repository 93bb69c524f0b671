"""The record of one lock: the turn holder, the waiting jobs, what every job has done, and which token ids are in doubt.

Rules for editors: the record is changed only by compare-and-set of a whole new value made by `moves`. Data that must
stay consistent in a crash (grant and epoch, completion and history) is one record. Source: docs/explanation/turns.md;
the JSON form is a file format: readers refuse a newer `format` and keep keys that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation, TokenId, Version
from lakegate.stored_json import Damaged, checked, fits, format_of, listed, parsed
from lakegate.turns.protocol.ordering import JobView, OrderRule, rule_from_json

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The turn in progress, and the processes that may be writing for it."""

    nonce: Nonce
    session: SessionId
    job: JobName
    run: str
    host: str
    boot_id: str
    pid: int
    pid_start: int
    jvm_pid: int | None
    jvm_start: int | None
    token_ids: tuple[TokenId, ...]
    batch: int | None
    """The micro-batch for which the turn was asked; None for a turn without source data."""
    tables: tuple[TableLocation, ...]
    since_ms: int
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keys that this version does not know; written back unchanged. Also in tickets and jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A job that waits for its turn. Tickets are stored in the order in which they were requested."""

    job: JobName
    session: SessionId
    nonce: Nonce
    asked_at_ms: int
    priority: int = 0
    aging_ms: int | None = None
    """Milliseconds of waiting that raise the priority by one; None: never."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job on this lock."""

    done: Epoch = Epoch(0)
    lost: tuple[Epoch, int | None] | None = None
    """Epoch and batch of a turn that ended unclean, until the job itself clears it up, or completes another turn."""
    turns: int = 0
    completed_at_ms: int | None = None
    idle_since_ms: int | None = None
    idle_at: Mapping[TableLocation, Version] = field(default_factory=dict)
    """Table → version up to which the job found nothing left to do."""
    rule: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A person has paused a job: the job takes no turn, and its successors do not wait for it."""

    since_ms: int
    by: str
    reason: str

    def __str__(self) -> str:
        return f"paused by {self.by}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The membership of a job in a run that ends when all of its jobs have nothing left to do."""

    run: str
    """The id of that run, the same for every job of it."""
    has_left: bool = False
    """The job has left the run. Until then its idle note counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """A token id that an unclean turn may still write with, and the tables where that is not fenced yet."""

    token_id: TokenId
    epoch: Epoch
    tables: tuple[TableLocation, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of the turn with the highest epoch. Stored outside the record, so that an older copy of the record is detected."""

    epoch: Epoch
    nonce: Nonce


def higher(stands: Mark | None, mark: Mark) -> Mark:
    """Returns the mark with the higher epoch; of equal epochs the one that was stored first."""
    return mark if stands is None or stands.epoch < mark.epoch else stands


def mark_to_json(mark: Mark) -> str:
    """Returns the JSON form of a mark."""
    return json.dumps({"epoch": mark.epoch, "nonce": mark.nonce})


def mark_from_json(text: str) -> Mark | None:
    """Returns a mark from its JSON form; None if no mark was stored yet.

    Raises:
        ValueError: not a mark.
    """
    if not text.strip():
        return None
    match json.loads(text):
        case {"epoch": int(epoch), "nonce": str(nonce)}:
            return Mark(Epoch(epoch), Nonce(nonce))
        case other:
            raise ValueError(f"not a mark of a turn: {other!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """The state of a lock. `tables` maps a table to the epoch whose entry commit made it trusted; all others are in doubt."""

    lock: str
    epoch: Epoch
    holder: Holder | None = None
    tickets: tuple[Ticket, ...] = ()
    jobs: Mapping[JobName, JobState] = field(default_factory=dict)
    in_doubt: tuple[InDoubt, ...] = ()
    tables: Mapping[TableLocation, Epoch] = field(default_factory=dict)
    paused: Mapping[JobName, Pause] = field(default_factory=dict)
    members: Mapping[JobName, Member] = field(default_factory=dict)
    """The run until idle in which a job wrote its idle note, or which the job has left."""
    granted: Nonce | None = None
    """The nonce of the last granted turn; None before the first, and from versions that stored no marks."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the JSON form that this version does not know; written back unchanged."""

    def job(self, name: JobName) -> JobState:
        """Returns the job's state; an empty state if the job was never seen."""
        return self.jobs.get(name, JobState())

    def ticket(self, nonce: Nonce) -> Ticket | None:
        """Returns the ticket requested under `nonce`, None if it is gone."""
        return next((ticket for ticket in self.tickets if ticket.nonce == nonce), None)

    def is_held_by(self, nonce: Nonce) -> bool:
        """Returns True if the turn in progress was granted to `nonce`."""
        return self.holder is not None and self.holder.nonce == nonce

    def is_older_than(self, mark: Mark | None) -> bool:
        """Returns True if the mark proves that this record is an older copy: a turn began that the record does not contain."""
        if mark is None or mark.epoch < self.epoch:
            return False
        return mark.epoch > self.epoch or self.granted not in (None, mark.nonce)

    def doubts(self, table: TableLocation) -> frozenset[TokenId]:
        """Returns the token ids that an unclean turn may still write with on `table`."""
        return frozenset(entry.token_id for entry in self.in_doubt if table in entry.tables)

    def views(self, live_jobs: frozenset[JobName]) -> dict[str, JobView]:
        """Returns the input of order rules, for every job that was seen on the lock or paused before it was seen."""
        names = dict.fromkeys([*self.jobs, *self.paused])
        return {
            name: JobView(
                done=state.done,
                idle_since_ms=state.idle_since_ms,
                completed_at_ms=state.completed_at_ms,
                is_live=name in live_jobs,
                is_closed=state.lost is None and (self.holder is None or self.holder.job != name),
                is_paused=name in self.paused,
            )
            for name, state in ((name, self.job(name)) for name in names)
        }

    def rule(self, job: JobName) -> tuple[OrderRule, int | None]:
        """Returns the order rule that the job registered, and its `absent_after_ms`."""
        return rule_from_json(self.job(job).rule)

    def to_json(self) -> str:
        """Returns the JSON form, one line, keys in a fixed order."""
        holder = self.holder and {
            "nonce": self.holder.nonce,
            "session": self.holder.session,
            "job": self.holder.job,
            "run": self.holder.run,
            "host": self.holder.host,
            "boot_id": self.holder.boot_id,
            "pid": self.holder.pid,
            "pid_start": self.holder.pid_start,
            "jvm_pid": self.holder.jvm_pid,
            "jvm_start": self.holder.jvm_start,
            "token_ids": list(self.holder.token_ids),
            "batch": self.holder.batch,
            "tables": list(self.holder.tables),
            "since_ms": self.holder.since_ms,
            **self.holder.extra,
        }
        data = {
            "format": FORMAT,
            "lock": self.lock,
            "epoch": self.epoch,
            "holder": holder,
            "tickets": [
                {"job": t.job, "session": t.session, "nonce": t.nonce, "asked_at_ms": t.asked_at_ms, **t.extra}
                for t in self.tickets
            ],
            "jobs": {
                name: {
                    "done": state.done,
                    "lost": state.lost and list(state.lost),
                    "turns": state.turns,
                    "completed_at_ms": state.completed_at_ms,
                    "idle_since_ms": state.idle_since_ms,
                    "idle_at": dict(state.idle_at),
                    "rule": state.rule,
                    **state.extra,
                }
                for name, state in self.jobs.items()
            },
            "in_doubt": [{"token_id": d.token_id, "epoch": d.epoch, "tables": list(d.tables)} for d in self.in_doubt],
            "tables": dict(self.tables),
            **self._order_keys(),
            **self.extra,
        }
        return json.dumps(data, separators=(",", ":"))

    def _order_keys(self) -> dict[str, Any]:
        """Returns keys that versions before priorities, pauses and members do not know. They are at the top level.

        Earlier versions keep unknown keys at the top level, but drop them inside a ticket. The keys go by nonce: a job that went
        back to such a version has a ticket without an entry, so newer versions never assume a priority for it (see
        `transitions.reason_to_wait`).
        """
        priorities = {
            t.nonce: {"priority": t.priority, "aging_ms": t.aging_ms}
            for t in self.tickets
            if t.priority or t.aging_ms is not None
        }
        paused = {
            job: {"since_ms": pause.since_ms, "by": pause.by, "reason": pause.reason}
            for job, pause in self.paused.items()
        }
        members = {job: {"run": one.run, "has_left": one.has_left} for job, one in self.members.items()}
        keys = {"priorities": priorities, "paused": paused, "members": members, "granted": self.granted}
        return {key: value for key, value in keys.items() if value}


class NewerFormat(ValueError):
    """The record was written by a newer version."""


def record_from_json(text: str | bytes) -> LockRecord:
    """Reads the record of a lock from its JSON form.

    Raises:
        NewerFormat: `format` is above what this version reads.
        ValueError: not a lock record.
    """
    data = parsed(text)
    try:
        if format_of(data) > FORMAT:
            raise NewerFormat(f"lock record of format {data['format']}; this version reads up to {FORMAT}")
        priorities = data.get("priorities", {})
        record = LockRecord(
            lock=data["lock"],
            epoch=Epoch(data["epoch"]),
            holder=None if data["holder"] is None else _holder(data["holder"]),
            tickets=tuple(_ticket(t, priorities.get(t["nonce"], {})) for t in listed(data["tickets"])),
            jobs={JobName(name): _job(state) for name, state in data["jobs"].items()},
            in_doubt=tuple(
                InDoubt(token_id=d["token_id"], epoch=Epoch(d["epoch"]), tables=listed(d["tables"]))
                for d in listed(data["in_doubt"])
            ),
            tables=data["tables"],
            paused={
                JobName(job): Pause(since_ms=p["since_ms"], by=p["by"], reason=p["reason"])
                for job, p in data.get("paused", {}).items()
            },
            members={
                JobName(job): Member(run=one["run"], has_left=one["has_left"])
                for job, one in data.get("members", {}).items()
            },
            granted=data.get("granted"),
            extra=_others(data, _RECORD_KEYS),
        )
        for state in checked(record).jobs.values():
            rule, absent_after_ms = rule_from_json(state.rule)
            if not fits(absent_after_ms, int | None):
                raise Damaged("the value of absent_after_ms cannot be one")
            checked(rule)
        return record
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise Damaged(f"not a lock record: {type(error).__name__} {error}") from error


_RECORD_KEYS = frozenset(
    {"format", "lock", "epoch", "holder", "tickets", "jobs", "in_doubt", "tables", "priorities", "paused", "members"}
    | {"granted"}
)
_HOLDER_KEYS = frozenset(one.name for one in fields(Holder)) - {"extra"}
_TICKET_KEYS = frozenset({"job", "session", "nonce", "asked_at_ms"})
_JOB_KEYS = frozenset(one.name for one in fields(JobState)) - {"extra"}


def _others(data: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in known}


def _ticket(data: Mapping[str, Any], order: Mapping[str, Any]) -> Ticket:
    return Ticket(
        job=data["job"],
        session=data["session"],
        nonce=data["nonce"],
        asked_at_ms=data["asked_at_ms"],
        priority=order.get("priority", 0),
        aging_ms=order.get("aging_ms"),
        extra=_others(data, _TICKET_KEYS),
    )


def _holder(data: Mapping[str, Any]) -> Holder:
    return Holder(
        nonce=data["nonce"],
        session=data["session"],
        job=data["job"],
        run=data["run"],
        host=data["host"],
        boot_id=data["boot_id"],
        pid=data["pid"],
        pid_start=data["pid_start"],
        jvm_pid=data["jvm_pid"],
        jvm_start=data["jvm_start"],
        token_ids=listed(data["token_ids"]),
        batch=data["batch"],
        tables=listed(data["tables"]),
        since_ms=data["since_ms"],
        extra=_others(data, _HOLDER_KEYS),
    )


def _job(data: Mapping[str, Any]) -> JobState:
    lost = data["lost"]
    return JobState(
        done=Epoch(data["done"]),
        lost=None if lost is None else listed(lost),
        turns=data["turns"],
        completed_at_ms=data["completed_at_ms"],
        idle_since_ms=data["idle_since_ms"],
        idle_at=data["idle_at"],
        rule=data["rule"],
        extra=_others(data, _JOB_KEYS),
    )
