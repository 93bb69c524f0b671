"""Counts a stream's stored requests by state and age, and its dead letters by age, from the tables' files, without Spark."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from lakegate.delta import deletion_vectors
from lakegate.delta.local_files import LiveFile, LocalLog, local_path
from lakegate.errors import Unavailable

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
AGES = (("1h", HOUR_MS), ("1d", DAY_MS), ("7d", 7 * DAY_MS), ("30d", 30 * DAY_MS))
"""Upper bounds; older requests are counted under `older`."""
KEPT = ("waiting", "dead")
"""States in which a request is neither finished nor being worked on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCount:
    """The requests of one state."""

    state: str
    requests: int
    oldest_ms: int
    """The time when the oldest of them was first seen."""
    ages: dict[str, int]
    """Upper bound of the age → number of requests between the previous bound and this one; `older` for the rest."""


def kept(log: LocalLog, now_ms: int) -> tuple[StateCount, ...]:
    """Returns the contents of a request table, in the order of `KEPT`; a state without a request is left out.

    Raises:
        Unavailable: A file cannot be read; it may have been vacuumed since the log was read.
        Corrupt: A deletion vector is damaged.
    """
    seen: dict[str, list[int]] = defaultdict(list)
    if log.exists:
        for file in log.live_files().values():
            state = file.partition.get("state")
            if state in KEPT:
                seen[str(state)] += _times(log, file, "first_seen_ms")
    return tuple(_counted(state, seen[state], now_ms) for state in KEPT if seen.get(state))


def set_aside(log: LocalLog, now_ms: int) -> StateCount | None:
    """Returns the records in a stream's table of dead letters; None if there is none.

    Raises:
        Unavailable, Corrupt: As `kept`.
    """
    times = [time for file in log.live_files().values() for time in _times(log, file, "at_ms")] if log.exists else []
    return _counted("set aside", times, now_ms) if times else None


def _counted(state: str, times: list[int], now_ms: int) -> StateCount:
    ages = dict.fromkeys([name for name, _ in AGES] + ["older"], 0)
    for time in times:
        ages[next((name for name, bound_ms in AGES if now_ms - time < bound_ms), "older")] += 1
    return StateCount(state=state, requests=len(times), oldest_ms=min(times), ages=ages)


def _times(log: LocalLog, file: LiveFile, column: str) -> list[int]:
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(log.table / file.path, columns=[column], partitioning=None)
        gone = hidden_rows(log, file)
    except OSError as error:
        raise Unavailable(f"a file of the table cannot be read: {error}", path=log.table / file.path) from error
    times = rows.column(column).to_pylist()
    return [int(time) for index, time in enumerate(times) if index not in gone and time is not None]


def hidden_rows(log: LocalLog, file: LiveFile) -> frozenset[int]:
    """Returns the rows of the file that a deletion vector hides."""
    if file.vector is None:
        return frozenset()
    where = deletion_vectors.location(file.vector)
    path = None if where is None else local_path(where) if ":" in where else log.table / where
    return frozenset(deletion_vectors.read(file.vector, None if path is None else path.read_bytes()))
