"""The events, as frozen records with units in their names; the ledger, the timeline and the progress lines are views of them.

No event carries a secret or a row value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Outcome = Literal["completed", "replayed", "swept", "gave_up", "failed", "lost", "fenced"]
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWaits:
    """A job waits for its turn; emitted once per reason."""

    lock: str
    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGranted:
    """A job has its turn."""

    lock: str
    job: str
    epoch: int
    predecessor: str | None
    waited_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWritten:
    """A step of a micro-batch is in its table; `is_applied_before`: an earlier run had written it."""

    lock: str
    job: str
    epoch: int
    batch: int | None
    step: str
    table: str
    version: int | None
    is_applied_before: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten:
    """A micro-batch or a sweep of a stream is written. Not emitted for a batch that an earlier run had written."""

    lock: str
    job: str
    epoch: int
    batch: int
    is_sweep: bool
    rows_in: int | None
    """Records of the source; None where they are not counted."""
    rows_written: int
    """Rows appended; for requests, rows changed and deleted."""
    rows_erased: int
    """The rows of `rows_written` that an erase stream deleted."""
    dead_letters: int
    """Records that were set aside."""
    dead_requests: int
    """Requests that cannot be applied."""
    unmet: Mapping[str, int] = field(default_factory=dict)
    """Expectation → records that do not meet it, and that were dropped or set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRepeated:
    """A statement conflicted with a commit of a writer that takes no turns, and is retried."""

    lock: str
    job: str
    table: str
    step: str
    conflict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementPublished:
    """A statement of `lakegate.DeltaTable` or `lakegate.sql` was committed, or had nothing to change."""

    table: str
    operation: str
    version: int | None
    """The version of its commit; None: nothing to change, or `is_superseded`."""
    is_superseded: bool
    """The statement was skipped: its transaction id is in the table with an equal or larger number."""
    level: int
    """How it was rebased onto other commits, 0 to 5: see `lakegate.rows.result.Result`."""
    attempts: int
    """Executions, including executions on some files."""
    lost_puts: int
    reasons: tuple[str, ...]
    """The reason for each repeated execution."""
    rows_read: int
    """Rows read again to check whether they concern the statement."""
    waited_ms: int
    publish_ms: float
    """From reading the winning commits to the end of the commit, without `waited_ms`."""
    held_ms: float
    """The part of that time in which other statements of this driver waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn ended, or a job gave up waiting for it: the ledger's row. `released_at_ms` of a lost turn: when it was closed."""

    lock: str
    job: str
    epoch: int | None
    """None where no turn was granted (`gave_up`)."""
    query_id: str | None
    run: str
    batches: tuple[int, int] | None
    """First and last micro-batch of the turn; None for a turn without source data."""
    predecessor: str | None
    asked_at_ms: int
    granted_at_ms: int | None
    first_write_at_ms: int | None
    commit_log_at_ms: int | None
    released_at_ms: int
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Table → versions that this turn committed, in order."""
    unmet: Mapping[str, int] = field(default_factory=dict)
    """Expectation → records of the batches that this turn wrote that do not meet it."""
    outcome: Outcome
    reason: str | None = None
    boot_id: str | None = None
    """The boot id of the machine: turns of one boot share a monotonic clock, used by the next two fields. None in older rows."""
    granted_up_ms: int | None = None
    released_up_ms: int | None = None
    closed_by: str | None = None
    """The job whose run closed the turn after its own run had died, or the person who took the turn away; then its wait is unknown.
    None: its own run reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdle:
    """A job has nothing left to do up to these table versions."""

    lock: str
    job: str
    idle_at: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """A note for people that changes nothing by itself."""

    job: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A part of a source that a stream did not read and that no longer exists: a field, deleted records."""

    lock: str
    job: str
    text: str
    """The name and place of that part; never a value of a record."""
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLate:
    """A stream is late: it has missed a whole turn. Emitted again when it no longer is."""

    lock: str
    job: str
    is_late: bool
    overdue_ms: int
    """The time since its last completed turn, minus its pace."""
    every_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBehind:
    """A sync's delay has exceeded a limit. Emitted again when it no longer does."""

    sync: str
    is_behind: bool
    behind_ms: int
    limit_ms: int


Action = Literal["pause", "resume", "break"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonActed:
    """A person pauses or resumes a job, or breaks a lock: emitted before the action, and again with its outcome."""

    action_id: str
    """The same id in both events."""
    lock: str
    job: str
    action: Action
    by: str
    """User and host."""
    reason: str
    at_ms: int
    epoch: int | None = None
    """The epoch of the broken turn."""
    token_ids: tuple[str, ...] = ()
    """The token ids that the turn may still write with; in doubt from then on."""
    outcome: Literal["asked", "done", "not_done"]


Event = (
    TurnWaits
    | TurnGranted
    | StepWritten
    | BatchWritten
    | StepRepeated
    | StatementPublished
    | TurnEnded
    | JobIdle
    | Noticed
    | LeftOut
    | StreamLate
    | SyncBehind
    | PersonActed
)


def to_json(event: Event) -> dict[str, Any]:
    """Returns the event as JSON data: `format`, `event` (its type), and its fields."""
    return {"format": FORMAT, "event": type(event).__name__, **dataclasses.asdict(event)}


class EventSink(Protocol):
    """Receives events. Never raises into the observed work, except `Unavailable` where a row must not be lost."""

    def emit(self, event: Event) -> None:
        """Receives an event; called in order by each thread."""
        ...
