"""Counts files that may still hold erased rows: a deletion vector hides rows, it does not remove them.

The count uses names, times and the log; no data are read. Source: docs/explanation/requests.md, *erase*.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakegate.delta.commit_file import Commit
from lakegate.delta.local_files import LOG, LocalLog
from lakegate.streams.maintenance.schedule import Erased, folded
from lakegate.streams.maintenance.statements import event

CHANGE_DATA = "_change_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesLeft:
    """Files that were written before an erasure and may still hold erased rows."""

    version: int
    """The table's version at which the rows were last erased."""
    erased_at_ms: int
    with_deletion_vectors: int
    """Files of the newest version in which rows are only hidden."""
    removed: int
    """Files of older versions that are not vacuumed yet."""
    change_data: int
    """Files of the change feed, with the rows before the erasure."""
    in_requests: int
    """The same counts for other streams' request tables and dead letters, which may name erased persons."""
    with_deletion_vectors_bytes: int
    removed_bytes: int
    change_data_bytes: int
    in_requests_bytes: int
    since_ms: int | None
    """The time of the oldest erasure whose files have not been purged and vacuumed since."""
    until_ms: int | None
    """The time by which the stream is to have deleted them; None without `physical_within`."""

    @property
    def size_bytes(self) -> int:
        """Total size of all these files."""
        return self.with_deletion_vectors_bytes + self.removed_bytes + self.change_data_bytes + self.in_requests_bytes

    @property
    def files(self) -> int:
        """Number of all these files."""
        return self.with_deletion_vectors + self.removed + self.change_data + self.in_requests

    def __str__(self) -> str:
        erased = f"logically erased at version {self.version}"
        if not self.files:
            return f"{erased}; no file that may hold the bytes is left"
        counts = (
            (self.with_deletion_vectors, self.with_deletion_vectors_bytes, "with hidden rows"),
            (self.removed, self.removed_bytes, "of older versions"),
            (self.change_data, self.change_data_bytes, "of the change feed"),
            (self.in_requests, self.in_requests_bytes, "of requests and dead letters"),
        )
        parts = "; ".join(f"{count} {what}, {size:,} bytes" for count, size, what in counts if count)
        since = "" if self.since_ms is None else f" since {_minute(self.since_ms)}"
        until = "REORG TABLE … APPLY (PURGE), then VACUUM, have been run by hand"
        if self.until_ms is not None:
            until = _minute(self.until_ms)
        return (
            f"{erased}; bytes of what was erased{since} still in {self.files} file{'s' if self.files != 1 else ''} until "
            f"{until} ({parts})"
        )


def bytes_left(
    job: str, table: LocalLog, requests: Sequence[LocalLog], *, within_ms: int | None = None
) -> BytesLeft | None:
    """Counts the files that an erase stream has left on disk; None if the log shows no erasure by it.

    Args:
        job: The name of the stream.
        table: The table of the stream.
        requests: The other tables from which it erases: other streams' requests, and dead letters.
        within_ms: The time after an erasure within which its bytes are to be gone; None: no limit is set.

    Raises:
        Unavailable: The state of a log cannot be read.
    """
    erased = last_erasure(job, table)
    if erased is None:
        return None
    hidden, removed, change_data = _left(table, erased.timestamp_ms)
    others = [pile for log in requests if log.exists for pile in _left(log, erased.timestamp_ms)]
    since = [_since_ms(job, log) for log in (table, *requests) if log.exists]
    since_ms = min((one for one in since if one is not None), default=None)
    return BytesLeft(
        version=erased.version,
        erased_at_ms=erased.timestamp_ms,
        with_deletion_vectors=len(hidden),
        removed=len(removed),
        change_data=len(change_data),
        in_requests=sum(len(pile) for pile in others),
        with_deletion_vectors_bytes=sum(hidden),
        removed_bytes=sum(removed),
        change_data_bytes=sum(change_data),
        in_requests_bytes=sum(sum(pile) for pile in others),
        since_ms=since_ms,
        until_ms=None if within_ms is None or since_ms is None else since_ms + within_ms,
    )


def _since_ms(job: str, log: LocalLog) -> int | None:
    events = [event(commit, job) for commit in log.commits()]
    recorded = next((state for one in reversed(events) if (state := Erased.recorded(one.facts)) is not None), Erased())
    return folded(recorded, events).since_ms


def last_erasure(job: str, table: LocalLog) -> Commit | None:
    """Returns the newest commit in which the stream removed rows of the table."""
    for commit in reversed(list(table.commits())):
        said = commit.user_metadata or {}
        if said.get("job") == job and said.get("step") == "apply":
            return commit
    return None


def _left(log: LocalLog, erased_at_ms: int) -> tuple[list[int], list[int], list[int]]:
    """Returns sizes of files from before the erasure: with hidden rows, of older versions, of the change feed."""
    live = log.live_files()
    hidden: list[int] = []
    removed: list[int] = []
    change_data: list[int] = []
    for name, file in _data_files(log.table):
        try:
            status = file.stat()
        except FileNotFoundError:  # vacuumed just now
            continue
        if status.st_mtime_ns // 1_000_000 > erased_at_ms:
            continue
        if name not in live:
            (change_data if name.startswith(f"{CHANGE_DATA}/") else removed).append(status.st_size)
        elif live[name].has_deleted_rows:
            hidden.append(status.st_size)
    return hidden, removed, change_data


def _data_files(table: Path) -> Iterator[tuple[str, Path]]:
    """Yields every Parquet file in the table's folder, with its path as in the log."""
    for folder, folders, names in os.walk(table):
        folders[:] = [name for name in folders if name not in (LOG, "_lakegate")]
        for name in names:
            if name.endswith(".parquet"):
                file = Path(folder) / name
                yield str(file.relative_to(table)), file


def _minute(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_ms // 1000))
