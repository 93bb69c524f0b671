"""The output lines of the jobs without turns, and their summary: conflicts, overlapping writes, restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time in which a job wrote to the table, or tried to. Milliseconds since 1970."""

    job: str
    from_ms: int
    until_ms: int
    error: str | None = None
    """The error of the write."""


def windows(lines: Sequence[Line]) -> list[Window]:
    """Returns every write that began, by its beginning; a write without an end lasts until the last line."""
    found: list[Window] = []
    begun: dict[str, int] = {}
    for line in sorted(lines, key=lambda line: line.at_ms):
        since = begun.pop(line.job, None) if line.what in ("began", "ended", "failed", "killed") else None
        if since is not None:
            found.append(Window(job=line.job, from_ms=since, until_ms=line.at_ms, error=line.error))
        if line.what == "began":
            begun[line.job] = line.at_ms
    last_ms = max((line.at_ms for line in lines), default=0)
    found += [Window(job=job, from_ms=since, until_ms=last_ms) for job, since in begun.items()]
    return sorted(found, key=lambda window: (window.from_ms, window.job))


def overlaps(lines: Sequence[Line]) -> int:
    """Returns the number of overlapping writes of two jobs; a write that begins when another ends does not overlap it."""
    all_windows = windows(lines)
    return sum(
        one.job != other.job and other.from_ms < one.until_ms
        for place, one in enumerate(all_windows)
        for other in all_windows[place + 1 :]
    )


def conflicts(lines: Sequence[Line]) -> dict[str, int]:
    """Returns class of the error → number of failed writes by a conflict."""
    return dict(Counter(line.error for line in lines if line.is_conflict and line.error is not None))


def batches(lines: Sequence[Line]) -> int:
    """Returns the number of micro-batches written, each counted once."""
    return len({(line.job, line.batch) for line in lines if line.what == "ended"})
