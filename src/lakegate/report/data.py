"""The input of a report: turns as in the ledger, commits as in the tables' logs, and one comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from lakegate.redaction import printable
from lakegate.stored_json import checked, listed, parsed
from lakegate.telemetry.events import TurnEnded
from lakegate.telemetry.hook_messages import tallied

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
    unmet: Mapping[str, int] = field(default_factory=dict)
    """Expectation → records of its batches that do not meet it."""
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

    @property
    def remark(self) -> str | None:
        """The reason of its end, or the expectations that records did not meet."""
        return self.reason or (f"not met: {tallied(self.unmet)}" if self.unmet else None)

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
            unmet=event.unmet,
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


class Ended(StrEnum):
    """The end of a write of a compared run."""

    WRITTEN = "written"
    SKIPPED = "in the table already, not written again"
    CONFLICT = "conflict"
    KILLED = "killed with kill -9"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A job's attempt to write a micro-batch; with turns, a turn. Instants are milliseconds since 1970."""

    job: str
    batch: str
    """`1`, or of a turn with several `1–3`."""
    waited_since_ms: int | None = None
    """Since when the job waited for its turn; None: it took no turn."""
    from_ms: int
    until_ms: int
    ended: Ended
    error: str | None = None
    """The class of the error."""
    versions: tuple[int, ...] = ()
    """The versions of the table that it committed."""


class FaultKind(StrEnum):
    """The ways in which a row of a final table differs from the expected table."""

    MISSING = "missing"
    DOUBLED = "doubled"
    ERASED = "of erased people"
    UNKNOWN = "of no input"
    WRONG = "with a wrong value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Rows of the final table that differ from the expected table in one way and come from one commit."""

    kind: FaultKind
    rows: int
    version: int | None = None
    """The commit that brought them; None: no commit of the log did, as after a lost commit."""
    job: str | None = None
    at_ms: int | None = None
    """When the commit was made, milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run of an experiment.

    `expected_rows - missing + doubled + of erased people + of no input` is `final_rows`.
    """

    name: str
    about: str
    """How its jobs write, in a sentence."""
    table: str
    """The name of its table among the commits of the report."""
    batches: int
    """Micro-batches written; with turns each belongs to a turn."""
    conflicts: Mapping[str, int] = field(default_factory=dict)
    """Class of the error (`ConcurrentAppendException`) → times seen by a job."""
    overlaps: int
    """Pairs of writes to the table that overlapped in time."""
    killed: int
    """Jobs ended with `kill -9` on purpose."""
    expected_rows: int
    final_rows: int
    faults: tuple[Fault, ...] = ()
    writes: tuple[Write, ...] = ()

    def rows(self, kind: FaultKind) -> int:
        """Returns the number of rows that differ in this way."""
        return sum(fault.rows for fault in self.faults if fault.kind is kind)

    @property
    def differing_rows(self) -> int:
        """The sum over all kinds; 0 if the table is exactly the expected one."""
        return sum(fault.rows for fault in self.faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same jobs on the same input: the first run with turns, the others without."""

    runs: tuple[ComparedRun, ...]
    notes: tuple[str, ...] = ()
    """Notes on the runs for a reader, a paragraph each."""

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
            runs = tuple(_run(one) for one in listed(data["runs"]))
            return checked(Comparison(runs=runs, notes=listed(data["notes"])))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error


def _run(data: Mapping[str, Any]) -> ComparedRun:
    faults = tuple(Fault(**{**one, "kind": FaultKind(one["kind"])}) for one in listed(data["faults"]))
    writes = tuple(
        Write(**{**one, "ended": Ended(one["ended"]), "versions": listed(one["versions"])})
        for one in listed(data["writes"])
    )
    return ComparedRun(**{**data, "faults": faults, "writes": writes})


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
