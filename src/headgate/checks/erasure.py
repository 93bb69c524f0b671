"""What is left of erased rows on disk: a deletion vector hides rows, it does not remove them.

Counts files that *may* hold them, from names, times and the log; no data are read. Source: docs/explanation/requests.md, E5.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.checks.disk import LOG, LocalLog
from headgate.delta.commits import Commit

CHANGE_DATA = "_change_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesLeft:
    """Files that were written before an erasure and may still hold what it erased."""

    version: int
    """The table's version at which the rows were last erased."""
    erased_at_ms: int
    with_deletion_vectors: int
    """Files of the newest version in which rows are only hidden."""
    removed: int
    """Files of older versions, not vacuumed yet."""
    change_data: int
    """Files of the change feed, with the rows as they were."""
    in_requests: int
    """The same of the request tables, which name the erased keys."""

    @property
    def files(self) -> int:
        """All of them."""
        return self.with_deletion_vectors + self.removed + self.change_data + self.in_requests

    def __str__(self) -> str:
        erased = f"logically erased at version {self.version}"
        if not self.files:
            return f"{erased}; no file that may hold the bytes is left"
        counts = (
            (self.with_deletion_vectors, "with hidden rows"),
            (self.removed, "of older versions"),
            (self.change_data, "of the change feed"),
            (self.in_requests, "of request tables"),
        )
        parts = ", ".join(f"{count} {what}" for count, what in counts if count)
        return (
            f"{erased}; bytes still in {self.files} file{'s' if self.files != 1 else ''} until REORG TABLE … APPLY (PURGE), "
            f"then VACUUM, have been run by hand ({parts})"
        )


def bytes_left(job: str, table: LocalLog, requests: Sequence[LocalLog]) -> BytesLeft | None:
    """What an erase stream has left on disk; None where it has erased nothing that the log still tells of.

    Args:
        job: The stream's name.
        table: Its table.
        requests: The request tables of every stream on that table.

    Raises:
        Unavailable: The state of a log cannot be read.
    """
    erased = last_erasure(job, table)
    if erased is None:
        return None
    hidden, removed, change_data = _left(table, erased.timestamp_ms)
    return BytesLeft(
        version=erased.version,
        erased_at_ms=erased.timestamp_ms,
        with_deletion_vectors=hidden,
        removed=removed,
        change_data=change_data,
        in_requests=sum(sum(_left(log, erased.timestamp_ms)) for log in requests if log.exists),
    )


def last_erasure(job: str, table: LocalLog) -> Commit | None:
    """The newest commit in which the stream removed rows of the table."""
    for commit in reversed(list(table.commits())):
        said = commit.user_metadata or {}
        if said.get("job") == job and said.get("step") == "apply":
            return commit
    return None


def _left(log: LocalLog, erased_at_ms: int) -> tuple[int, int, int]:
    """Files from before the erasure: with hidden rows, of older versions, of the change feed."""
    live = log.live_files()
    hidden = removed = change_data = 0
    for name, file in _data_files(log.table):
        is_live = name in live
        if is_live:
            hidden += live[name].has_deleted_rows
        elif _modified_ms(file) <= erased_at_ms:
            if name.startswith(f"{CHANGE_DATA}/"):
                change_data += 1
            else:
                removed += 1
    return hidden, removed, change_data


def _data_files(table: Path) -> Iterator[tuple[str, Path]]:
    """Every Parquet file in the table's folder, by its path in the log's terms."""
    for folder, folders, names in os.walk(table):
        folders[:] = [name for name in folders if name not in (LOG, "_headgate")]
        for name in names:
            if name.endswith(".parquet"):
                file = Path(folder) / name
                yield str(file.relative_to(table)), file


def _modified_ms(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:  # vacuumed just now
        return 1 << 62
