"""The record of one lock: who holds the turn, who waits, what every job has done, what is in doubt.

Rules for editors: the record is changed only by compare-and-set of a whole new value made by `moves`. Everything that must
not come apart in a crash (grant and epoch, completion and history) is one record. Source: docs/explanation/turns.md;
the JSON form is a file format: readers refuse a newer `format` and keep keys that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.core.ids import Epoch, JobName, Nonce, SessionId, TableLocation, TokenId, Version
from headgate.core.turns.order import JobView, OrderRule, rule_from_json

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The turn that is on, and the processes that may be writing for it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A job waiting for its turn. Tickets stand in the order in which they were asked."""

    job: JobName
    session: SessionId
    nonce: Nonce
    asked_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What a job has done on this lock."""

    done: Epoch = Epoch(0)
    lost: tuple[Epoch, int | None] | None = None
    """Epoch and batch of a turn that ended unclean, until the job itself finds out, or completes another."""
    turns: int = 0
    completed_at_ms: int | None = None
    idle_since_ms: int | None = None
    idle_at: Mapping[TableLocation, Version] = field(default_factory=dict)
    """Table → version up to which the job found nothing left to do."""
    rule: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """A token id that an unclean turn may still write with, and the tables where that is not fenced yet."""

    token_id: TokenId
    epoch: Epoch
    tables: tuple[TableLocation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """One lock. `tables` maps each table to the epoch whose entry commit made it trusted; others are in doubt whole."""

    lock: str
    epoch: Epoch
    holder: Holder | None = None
    tickets: tuple[Ticket, ...] = ()
    jobs: Mapping[JobName, JobState] = field(default_factory=dict)
    in_doubt: tuple[InDoubt, ...] = ()
    tables: Mapping[TableLocation, Epoch] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the JSON form that this version does not know; written back as they were."""

    def job(self, name: JobName) -> JobState:
        """The job's state; an empty one if it was never seen."""
        return self.jobs.get(name, JobState())

    def ticket(self, nonce: Nonce) -> Ticket | None:
        """The ticket drawn under `nonce`, if it still stands."""
        return next((ticket for ticket in self.tickets if ticket.nonce == nonce), None)

    def is_held_by(self, nonce: Nonce) -> bool:
        """Whether the turn that is on was granted to `nonce`."""
        return self.holder is not None and self.holder.nonce == nonce

    def doubts(self, table: TableLocation) -> frozenset[TokenId]:
        """Token ids that an unclean turn may still write with on `table`."""
        return frozenset(entry.token_id for entry in self.in_doubt if table in entry.tables)

    def views(self, live_jobs: frozenset[JobName]) -> dict[str, JobView]:
        """What order rules may look at, for every job ever seen on the lock."""
        return {
            name: JobView(
                done=state.done,
                idle_since_ms=state.idle_since_ms,
                completed_at_ms=state.completed_at_ms,
                is_live=name in live_jobs,
                is_closed=state.lost is None and (self.holder is None or self.holder.job != name),
            )
            for name, state in self.jobs.items()
        }

    def rule(self, job: JobName) -> tuple[OrderRule, int | None]:
        """The order rule that the job registered, and its `absent_after_ms`."""
        return rule_from_json(self.job(job).rule)

    def to_json(self) -> str:
        """The JSON form, one line, keys in a fixed order."""
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
        }
        data = {
            "format": FORMAT,
            "lock": self.lock,
            "epoch": self.epoch,
            "holder": holder,
            "tickets": [
                {"job": t.job, "session": t.session, "nonce": t.nonce, "asked_at_ms": t.asked_at_ms}
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
                }
                for name, state in self.jobs.items()
            },
            "in_doubt": [{"token_id": d.token_id, "epoch": d.epoch, "tables": list(d.tables)} for d in self.in_doubt],
            "tables": dict(self.tables),
            **self.extra,
        }
        return json.dumps(data, separators=(",", ":"))


class NewerFormat(ValueError):
    """The record was written by a newer version."""


def record_from_json(text: str) -> LockRecord:
    """The record of one lock, from its JSON form.

    Raises:
        NewerFormat: `format` is above what this version reads.
        ValueError: not a lock record.
    """
    data = json.loads(text)
    try:
        if data["format"] > FORMAT:
            raise NewerFormat(f"lock record of format {data['format']}; this version reads up to {FORMAT}")
        known = {"format", "lock", "epoch", "holder", "tickets", "jobs", "in_doubt", "tables"}
        return LockRecord(
            lock=data["lock"],
            epoch=Epoch(data["epoch"]),
            holder=None if data["holder"] is None else _holder(data["holder"]),
            tickets=tuple(
                Ticket(job=t["job"], session=t["session"], nonce=t["nonce"], asked_at_ms=t["asked_at_ms"])
                for t in data["tickets"]
            ),
            jobs={JobName(name): _job(state) for name, state in data["jobs"].items()},
            in_doubt=tuple(
                InDoubt(token_id=d["token_id"], epoch=Epoch(d["epoch"]), tables=tuple(d["tables"]))
                for d in data["in_doubt"]
            ),
            tables=data["tables"],
            extra={key: value for key, value in data.items() if key not in known},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a lock record: {error!r}") from error


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
        token_ids=tuple(data["token_ids"]),
        batch=data["batch"],
        tables=tuple(data["tables"]),
        since_ms=data["since_ms"],
    )


def _job(data: Mapping[str, Any]) -> JobState:
    lost = data["lost"]
    return JobState(
        done=Epoch(data["done"]),
        lost=None if lost is None else (Epoch(lost[0]), lost[1]),
        turns=data["turns"],
        completed_at_ms=data["completed_at_ms"],
        idle_since_ms=data["idle_since_ms"],
        idle_at=data["idle_at"],
        rule=data["rule"],
    )
