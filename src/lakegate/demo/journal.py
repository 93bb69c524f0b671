"""The output lines of the jobs without turns, and their summary: conflicts, overlapping writes, micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lakegate.report.data import CommitRow, Ended, Write


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An event that a job printed, or that was observed."""

    job: str
    what: str
    """`began`, `ended` and `failed` refer to a write; `restarted` to the query; `killed` to the process."""
    batch: int | None
    at_ms: int
    error: str | None = None
    is_conflict: bool = False


def writes(lines: Sequence[Line], commits: Sequence[CommitRow]) -> tuple[Write, ...]:
    """Returns every write that began, by its beginning; a write without an end lasts until the last line.

    Args:
        lines: The lines of a run.
        commits: The commits of its table, of which those of a job within a write are the write's.
    """
    found: list[Write] = []
    begun: dict[str, Line] = {}

    def add(began: Line, until_ms: int, ended: Ended, error: str | None = None) -> None:
        own = (one for one in commits if one.job == began.job and began.at_ms <= one.timestamp_ms <= until_ms)
        found.append(
            Write(
                job=began.job,
                batch=str(began.batch),
                from_ms=began.at_ms,
                until_ms=until_ms,
                ended=ended,
                error=error,
                versions=tuple(one.version for one in own),
            )
        )

    for line in sorted(lines, key=lambda line: line.at_ms):
        if line.what == "began":
            begun[line.job] = line
        elif line.what in ("ended", "failed", "killed") and (began := begun.pop(line.job, None)) is not None:
            ended = {"ended": Ended.WRITTEN, "killed": Ended.KILLED}.get(line.what)
            add(began, line.at_ms, ended or (Ended.CONFLICT if line.is_conflict else Ended.FAILED), line.error)
    last_ms = max((line.at_ms for line in lines), default=0)
    for began in begun.values():
        add(began, last_ms, Ended.FAILED)
    return tuple(sorted(found, key=lambda one: (one.from_ms, one.job)))


def overlaps(all_writes: Sequence[Write]) -> int:
    """Returns the number of overlapping writes of two jobs; a write that begins when another ends does not overlap it.

    Args:
        all_writes: The writes, by their beginning.
    """
    return sum(
        one.job != other.job and other.from_ms < one.until_ms
        for place, one in enumerate(all_writes)
        for other in all_writes[place + 1 :]
    )


def conflicts(lines: Sequence[Line]) -> dict[str, int]:
    """Returns class of the error → number of failed writes by a conflict."""
    return dict(Counter(line.error for line in lines if line.is_conflict and line.error is not None))


def batches(lines: Sequence[Line]) -> int:
    """Returns the number of micro-batches written, each counted once."""
    return len({(line.job, line.batch) for line in lines if line.what == "ended"})
