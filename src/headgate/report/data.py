"""What a report is made from: turns as in the ledger, commits as in the tables' logs, and one comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from headgate.errors import Corrupt, InvalidRequest
from headgate.events import TurnEnded

LEDGER_FORMAT = 1
COMPARISON = "comparison.json"
"""Where the demo leaves its comparison, beside its `headgate.yml`."""


class Outcome(StrEnum):
    """How a turn ended."""

    COMPLETED = "completed"
    REPLAYED = "replayed"
    SWEPT = "swept"
    GAVE_UP = "gave_up"
    FAILED = "failed"
    LOST = "lost"
    FENCED = "fenced"

    @property
    def words(self) -> str:
        """The outcome as it is written for people."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One turn, field by field as its row in the ledger. Instants are milliseconds since 1970 (UTC), or none."""

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

    @property
    def waited_ms(self) -> int | None:
        """From asking to the grant, or to giving up; none if neither was noted."""
        until = self.released_at_ms if self.granted_at_ms is None else self.granted_at_ms
        # A wall clock may be set back between two readings; a negative wait would only confuse.
        return None if until is None else max(0, until - self.asked_at_ms)

    @property
    def held_ms(self) -> int | None:
        """From the grant to the release; none if either was not noted."""
        if self.granted_at_ms is None or self.released_at_ms is None:
            return None
        return max(0, self.released_at_ms - self.granted_at_ms)

    @classmethod
    def from_event(cls, event: TurnEnded) -> TurnRow:
        """The turn that an event tells of."""
        return cls(
            lock=event.lock,
            job=event.job,
            epoch=event.epoch,
            query_id=event.query_id,
            run=event.run,
            batches=event.batches,
            predecessor=event.predecessor,
            asked_at_ms=event.asked_at_ms,
            granted_at_ms=event.granted_at_ms,
            first_write_at_ms=event.first_write_at_ms,
            commit_log_at_ms=event.commit_log_at_ms,
            released_at_ms=event.released_at_ms,
            versions=event.versions,
            outcome=Outcome(event.outcome),
            reason=event.reason,
        )

    @classmethod
    def from_ledger(cls, line: str) -> TurnRow:
        """The turn that a line of the ledger describes. Keys that this version does not know are passed over.

        Raises:
            Corrupt: The line is not JSON, lacks a field, or a field has the wrong type.
            InvalidRequest: The line was written in a newer format.
        """
        try:
            row = json.loads(line)
        except ValueError as error:
            raise Corrupt("a line of the ledger is not JSON; it was not read", line=_shortened(line)) from error
        if not isinstance(row, dict):
            raise Corrupt("a line of the ledger is not an object; it was not read", line=_shortened(line))
        written_as = row.get("format")
        if isinstance(written_as, int) and written_as > LEDGER_FORMAT:
            raise InvalidRequest(
                "the ledger was written by a newer version; it was not read",
                format=written_as,
                advice="Use the version of Headgate that wrote it, or a later one",
            )
        try:
            return cls(
                lock=_text(row["lock"]),
                job=_text(row["job"]),
                epoch=_optional_whole(row["epoch"]),
                query_id=_optional_text(row["query_id"]),
                run=_optional_text(row["run"]),
                batches=_span(row["batches"]),
                predecessor=_optional_text(row["predecessor"]),
                asked_at_ms=_whole(row["asked_at_ms"]),
                granted_at_ms=_optional_whole(row["granted_at_ms"]),
                first_write_at_ms=_optional_whole(row["first_write_at_ms"]),
                commit_log_at_ms=_optional_whole(row["commit_log_at_ms"]),
                released_at_ms=_optional_whole(row["released_at_ms"]),
                versions=_versions(row["versions"]),
                outcome=Outcome(_text(row["outcome"])),
                reason=_optional_text(row["reason"]),
            )
        except KeyError as error:
            raise Corrupt("a line of the ledger lacks a field; it was not read", field=error.args[0]) from error
        except (TypeError, ValueError) as error:
            raise Corrupt(f"a line of the ledger is wrong: {error}; it was not read", line=_shortened(line)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRow:
    """One version of one table. `job` to `step` are none for a writer that did not come through Headgate."""

    table: str
    version: int
    timestamp_ms: int
    job: str | None = None
    epoch: int | None = None
    batch: int | None = None
    step: str | None = None
    operation: str
    rows_added: int | None = None
    """None if the log does not say, as for entry commits."""
    rows_removed: int | None = None

    @property
    def is_without_rows(self) -> bool:
        """Whether no row count says that a row came or went: entry commits, table creation, OPTIMIZE, settings."""
        return not self.rows_added and not self.rows_removed


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonColumn:
    """What one of the two runs of an experiment came to."""

    jobs: int
    batches: int
    """Micro-batches written; with the coordinator each lies in a turn."""
    conflicts: Mapping[str, int]
    """Class of the error (`ConcurrentAppendException`) → times seen by a job."""
    overlaps: int
    """Pairs of writes to one table that ran at the same time."""
    restarts: int
    """Times a job ended with an error and was started again."""
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
    """What a reader should know of the two runs, a paragraph each."""

    def to_json(self) -> str:
        """The file that the demo leaves beside its `headgate.yml` for later reports."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Comparison:
        """Of such a file.

        Raises:
            ValueError: it is none.
        """
        try:
            data = json.loads(text)
            runs = {side: ComparisonColumn(**data[side]) for side in ("with_coordinator", "without_coordinator")}
            return Comparison(**runs, notes=tuple(data["notes"]))
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything a report shows. The order of `turns` and `commits` does not matter."""

    pipeline: str
    made_at_ms: int
    machine: str
    """One line about where it ran: `build-7, Linux, 2 cores, 24 GB`."""
    turns: tuple[TurnRow, ...]
    commits: tuple[CommitRow, ...] = ()
    comparison: Comparison | None = None


def _shortened(line: str) -> str:
    return repr(line if len(line) <= 80 else f"{line[:80]}…")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _whole(value: object) -> int:
    # bool is an int in Python, and never a number in the ledger.
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _optional_whole(value: object) -> int | None:
    return None if value is None else _whole(value)


def _span(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise TypeError(f"expected the first and the last batch, found {value!r}")
    return _whole(value[0]), _whole(value[1])


def _versions(value: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, dict):
        raise TypeError(f"expected the versions of each table, found {value!r}")
    return {_text(table): tuple(sorted(_whole(version) for version in versions)) for table, versions in value.items()}
