"""The input of a report: turns as in the ledger, commits as in the tables' logs, and one comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from lakegate.redaction import printable
from lakegate.stored_json import checked, listed, parsed
from lakegate.telemetry.events import TurnEnded

COMPARISON = "comparison.json"
"""The file of the demo's comparison, next to its `lakegate.yml`."""


class Outcome(StrEnum):
    """The outcome of a turn."""

    COMPLETED = "completed"
    REPLAYED = "replayed"
    SWEPT = "swept"
    GAVE_UP = "gave_up"
    FAILED = "failed"
    LOST = "lost"
    FENCED = "fenced"

    @property
    def words(self) -> str:
        """The outcome as text for people."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """A turn, with the fields of its row in the ledger. Instants are milliseconds since 1970 (UTC), or none."""

    lock: str
    job: str
    epoch: int | None = None
    query_id: str | None = None
    run: str | None = None
    batches: tuple[int, int] | None = None
    """First and last micro-batch, both included."""
    predecessor: str | None = None
    asked_at_ms: int
    granted_at_ms: int | None = None
    first_write_at_ms: int | None = None
    commit_log_at_ms: int | None = None
    released_at_ms: int | None = None
    """When the turn was given back; for a turn that was never granted, when the job stopped waiting."""
    versions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Table → the versions that this turn committed, ascending."""
    outcome: Outcome
    reason: str | None = None
    boot_id: str | None = None
    """The boot id of the machine: turns of one boot share a monotonic clock, used by the next two fields."""
    granted_up_ms: int | None = None
    released_up_ms: int | None = None
    closed_by: str | None = None
    """The job or the person that closed the turn; None: its own run reported it."""

    @property
    def waited_ms(self) -> int | None:
        """From asking to the grant, or to giving up; none if neither was recorded."""
        if self.closed_by is not None:
            return None
        until = self.released_at_ms if self.granted_at_ms is None else self.granted_at_ms
        # A wall clock may be set back between two readings; a negative wait would only confuse.
        return None if until is None else max(0, until - self.asked_at_ms)

    @property
    def held_ms(self) -> int | None:
        """From the grant to the release; none if either was not recorded."""
        if self.granted_at_ms is None or self.released_at_ms is None:
            return None
        return max(0, self.released_at_ms - self.granted_at_ms)

    @classmethod
    def from_event(cls, event: TurnEnded) -> TurnRow:
        """Returns the turn of an event; characters that would change the writing direction are shown as escapes."""
        return cls(
            lock=printable(event.lock),
            job=printable(event.job),
            epoch=event.epoch,
            query_id=event.query_id,
            run=event.run,
            batches=event.batches,
            predecessor=None if event.predecessor is None else printable(event.predecessor),
            asked_at_ms=event.asked_at_ms,
            granted_at_ms=event.granted_at_ms,
            first_write_at_ms=event.first_write_at_ms,
            commit_log_at_ms=event.commit_log_at_ms,
            released_at_ms=event.released_at_ms,
            versions=event.versions,
            outcome=Outcome(event.outcome),
            reason=None if event.reason is None else printable(event.reason),
            boot_id=event.boot_id,
            granted_up_ms=event.granted_up_ms,
            released_up_ms=event.released_up_ms,
            closed_by=event.closed_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRow:
    """A version of a table. `job` to `step` are none for a writer outside Lakegate."""

    table: str
    version: int
    timestamp_ms: int
    job: str | None = None
    epoch: int | None = None
    batch: int | None = None
    step: str | None = None
    operation: str
    rows_added: int | None = None
    """None if the log does not state it, as for entry commits."""
    rows_removed: int | None = None

    @property
    def is_without_rows(self) -> bool:
        """True if no row count shows an added or removed row: entry commits, table creation, OPTIMIZE, settings."""
        return not self.rows_added and not self.rows_removed


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonColumn:
    """The result of one of the two runs of an experiment."""

    jobs: int
    batches: int
    """Micro-batches written; with the coordinator each belongs to a turn."""
    conflicts: Mapping[str, int]
    """Class of the error (`ConcurrentAppendException`) → times seen by a job."""
    overlaps: int
    """Pairs of writes to one table that overlapped in time."""
    restarts: int
    """Number of times that a job ended with an error and was restarted."""
    killed: int
    """Jobs ended with `kill -9` on purpose."""
    expected_rows: int
    final_rows: int
    missing_rows: int
    doubled_rows: int
    correct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same jobs on the same input, with the coordinator and without."""

    with_coordinator: ComparisonColumn
    without_coordinator: ComparisonColumn
    notes: tuple[str, ...] = ()
    """Notes on the two runs for a reader, a paragraph each."""

    def to_json(self) -> str:
        """Returns the file that the demo stores next to its `lakegate.yml` for later reports."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Comparison:
        """Reads such a file.

        Raises:
            ValueError: the text is not such a file.
        """
        try:
            data = parsed(text)
            runs = {side: ComparisonColumn(**data[side]) for side in ("with_coordinator", "without_coordinator")}
            return checked(Comparison(**runs, notes=listed(data["notes"])))
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """All data of a report. The order of `turns` and `commits` does not matter."""

    pipeline: str
    made_at_ms: int
    machine: str
    """A line about the machine: `build-7, Linux, 2 cores, 24 GB`."""
    turns: tuple[TurnRow, ...]
    commits: tuple[CommitRow, ...] = ()
    comparison: Comparison | None = None
