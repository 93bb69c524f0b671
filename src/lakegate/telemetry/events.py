"""What may happen, as frozen records with units in their names; the ledger, the timeline and the progress lines are views of them.

No event carries a secret or a row value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Outcome = Literal["completed", "replayed", "swept", "gave_up", "failed", "lost", "fenced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWaits:
    """A job waits for its turn; said once per reason."""

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
class StepRepeated:
    """A statement met a conflicting commit of a writer that takes no turns, and is run again."""

    lock: str
    job: str
    table: str
    step: str
    conflict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementPublished:
    """A statement of `lakegate.DeltaTable` or `lakegate.sql` is in its table, or had nothing to do there."""

    table: str
    operation: str
    version: int | None
    """Of its commit; None: nothing to change, or `is_superseded`."""
    is_superseded: bool
    """It was left out: its transaction id is in the table with an equal or larger number."""
    level: int
    """How it followed others, 0 to 5: see `lakegate.rows.result.Result`."""
    attempts: int
    """Executions, those on some files included."""
    lost_puts: int
    reasons: tuple[str, ...]
    """Why it was executed again, each time."""
    rows_read: int
    """Rows read again to see whether they concern it."""
    waited_ms: int
    publish_ms: float
    """From reading what others committed to the end of the put, without `waited_ms`."""
    held_ms: float
    """So long of it others of this driver waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn is over, or was given up: the ledger's row."""

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
    outcome: Outcome
    reason: str | None = None
    boot_id: str | None = None
    """Of the machine: turns of one boot have one clock that only runs, and the next two are by it. None in rows from before."""
    granted_up_ms: int | None = None
    released_up_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdle:
    """A job has nothing left to do up to these table versions."""

    lock: str
    job: str
    idle_at: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Something that a person should know, and that changes nothing by itself."""

    job: str | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that a source held and a stream did not read, of which nothing is left to look at: a field, deleted records."""

    lock: str
    job: str
    text: str
    """What, by its name and place; never a value of a record."""
    at_ms: int


Action = Literal["pause", "resume", "break"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonActed:
    """A person pauses or resumes a job, or breaks a lock: said before it is done, and again with what came of it."""

    action_id: str
    """The same in both."""
    lock: str
    job: str
    action: Action
    by: str
    """User and host."""
    reason: str
    at_ms: int
    epoch: int | None = None
    """Of the turn that is broken."""
    token_ids: tuple[str, ...] = ()
    """What that turn may still write with; in doubt from then on."""
    outcome: Literal["asked", "done", "not_done"]


Event = (
    TurnWaits
    | TurnGranted
    | StepWritten
    | StepRepeated
    | StatementPublished
    | TurnEnded
    | JobIdle
    | Noticed
    | LeftOut
    | PersonActed
)


class EventSink(Protocol):
    """Takes events. Never raises into the work that it watches, except `Unavailable` where a row must not be lost."""

    def emit(self, event: Event) -> None:
        """One event; called in order by each thread."""
        ...
