"""Reads the ledger, and keeps its reading short: old runs' files become one file for each day, with a summary of all days.

A line is added to the file of its day before the file of its run is deleted, and readers read runs before days. So a reader
finds each line at least once, and `each_once` leaves out the second copy that a crash, or the moment between, has left.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from lakegate.errors import Corrupt, LakegateError
from lakegate.private_files import make_folder, open_file, write_file
from lakegate.stored_json import Damaged, format_of, listed, parsed
from lakegate.telemetry import turn_totals
from lakegate.telemetry.events import TurnEnded
from lakegate.telemetry.ledger import (
    FORMAT,
    each_once,
    ended,
    from_line,
    identity,
    read_runs,
    rows_in,
    run_files,
    to_line,
    trim_actions,
    turn_of,
)
from lakegate.telemetry.turn_totals import Totals, add_turns

DAYS = "days"
"""The folder for the turns of old runs, next to the turns of a lock: a file for each day on which they ended, in UTC."""
SUMMARY = "summary.json"
RECENT_MS = 2 * 86_400_000
"""A run that wrote in this time may still write."""
FILES_MIN, BYTES_MIN = 100, 1_000_000
"""Less is not worth a merge."""
FILES_MAX = 5_000
"""At most so many files are merged at once, a second's work."""

OnDamage = Callable[[Corrupt], None]


@dataclass(slots=True)
class Summary:
    """Sums of the turns of a ledger, and the few turns that a run needs."""

    rows: list[TurnEnded] = field(default_factory=list)
    """The rows of `last_rows`, by time."""
    totals: Totals = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """File of a day → its size in bytes when its turns were added. What follows is not in the summary."""
    merged: dict[str, int] = field(default_factory=dict)
    """File of a run → its size in bytes when its turns were added. It is to be deleted; its turns do not count twice."""

    def add(self, rows: Iterable[TurnEnded]) -> None:
        """Adds turns."""
        new = list(rows)
        add_turns(self.totals, new)
        self.rows = last_rows([*self.rows, *new])


def last_rows(rows: Iterable[TurnEnded]) -> list[TurnEnded]:
    """Returns the rows that the start of a run needs, by time.

    For each lock its newest epoch, for each job and checkpoint the last granted turn, for each table the newest version.
    """
    last: dict[object, TurnEnded] = {}
    for row in each_once(rows):
        if row.epoch is not None:
            epoch = last.setdefault(row.lock, row)
            if row.epoch >= (epoch.epoch or 0):
                last[row.lock] = row
            if row.query_id is not None:
                last[row.lock, row.job, row.query_id] = row
        for table, versions in row.versions.items():
            newest = last.setdefault((table,), row).versions[table]
            if versions and max(versions) >= max(newest, default=-1):
                last[table,] = row
    return each_once(last.values())


def read_ledger(
    storage: str | os.PathLike[str], lock: str | None = None, *, on_damage: OnDamage | None = None
) -> list[TurnEnded]:
    """Returns every row of one lock, or of all locks, by the time at which the turn ended; each turn once.

    Args:
        storage: The pipeline's storage.
        lock: The lock; all by default.
        on_damage: Called for each line that is not a row; the line is then skipped. For work that can do without it.

    Raises:
        Corrupt: a line is not a row; a line cut off at the end of a file (a crash while it was written) is skipped.
        InvalidRequest: a newer format.
    """
    runs = read_runs(storage, lock, on_damage=on_damage)
    return each_once([*runs, *(row for day in _days(storage, lock) for row in rows_in(day, from_line, on_damage))])


def newest_first(storage: str | os.PathLike[str], lock: str | None = None) -> Iterator[TurnEnded]:
    """Yields the rows of one lock, or of all locks, the last turn first. Files of a day are read when a row of them is needed.

    Raises:
        Corrupt, InvalidRequest: As `read_ledger`.
    """
    recent = each_once(read_runs(storage, lock))[::-1]
    seen: set[object] = set()
    for row in heapq.merge(recent, _by_day(storage, lock), key=ended, reverse=True):
        names = {identity(row)} | ({turn_of(row)} if row.closed_by is not None else set())
        if seen.isdisjoint(names):
            yield row
        seen |= {identity(row), turn_of(row)}


def _by_day(storage: str | os.PathLike[str], lock: str | None) -> Iterator[TurnEnded]:
    days: dict[str, list[Path]] = defaultdict(list)
    for path in _days(storage, lock):
        days[path.name].append(path)
    for name in sorted(days, reverse=True):
        yield from each_once(row for path in days[name] for row in rows_in(path, from_line))[::-1]


def read_summary(storage: str | os.PathLike[str], *, on_damage: OnDamage | None = None) -> Summary:
    """Returns the summary of all locks, with the turns that are not merged yet.

    Raises:
        Corrupt, InvalidRequest: As `read_ledger`.
    """
    while True:
        before = _summaries(storage)
        found = _read_summary(storage, on_damage)
        if _summaries(storage) == before:
            return found
        # Files were merged in the meantime: turns may be missing, or there twice.


def _summaries(storage: str | os.PathLike[str]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (Path(storage) / "ledger").glob(f"*/{DAYS}/{SUMMARY}")}


def _read_summary(storage: str | os.PathLike[str], on_damage: OnDamage | None) -> Summary:
    whole = Summary()
    rows: list[TurnEnded] = []
    for folder in _folders(storage):
        found, later = _stored(folder / DAYS, on_damage)
        whole.rows += found.rows
        whole.totals |= found.totals
        rows += later
        for path in _unmerged(folder, found):
            rows += rows_in(path, from_line, on_damage)
    whole.add(each_once(rows))
    return whole


def _folders(storage: str | os.PathLike[str]) -> list[Path]:
    """Returns the folder of each lock."""
    return sorted(path for path in (Path(storage) / "ledger").glob("*") if path.is_dir())


def _unmerged(folder: Path, summary: Summary) -> dict[Path, os.stat_result]:
    """Returns the files of runs that the summary does not contain. A process that was stopped for days may write again."""
    found: dict[Path, os.stat_result] = {}
    for path in run_files(folder.parent.parent, unquote(folder.name)):
        with suppress(FileNotFoundError):  # merged just now
            found[path] = path.stat()
    return {path: stat for path, stat in found.items() if summary.merged.get(_name(path, folder)) != stat.st_size}


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder))


def merge_old_runs(storage: str | os.PathLike[str], *, now_ms: int, before_ms: int) -> None:
    """Merges the files of old runs into files of days, and deletes turns and actions from before an instant.

    What the deleted turns add to the summary stays. If another process does the same at this time, nothing is done.

    Args:
        storage: The pipeline's storage.
        now_ms: The time, in ms since 1970.
        before_ms: The instant, in ms since 1970.

    Raises:
        OSError: A file cannot be written or deleted. The ledger is whole; the next call goes on.
        InvalidRequest: A newer format.
    """
    with _alone(Path(storage) / "ledger") as is_alone:
        if not is_alone:
            return
        for folder in _folders(storage):
            _merge(folder, now_ms=now_ms, before_ms=before_ms)
            for day in (folder / DAYS).glob("*.jsonl"):
                if day.stem < _day(before_ms):
                    day.unlink()
        trim_actions(storage, before_ms=before_ms)


def _merge(folder: Path, *, now_ms: int, before_ms: int) -> None:
    until_ms = max(now_ms - RECENT_MS, before_ms)
    days = folder / DAYS
    summary, later = _stored(days)
    _delete_merged(folder, summary)  # those that a crash has left
    written = _unmerged(folder, summary)
    old = sorted((stat.st_mtime_ns, path) for path, stat in written.items() if stat.st_mtime_ns < until_ms * 1_000_000)
    files = [path for _, path in old][:FILES_MAX]
    is_due = bool(old) and old[0][0] < before_ms * 1_000_000
    if not (is_due or len(files) >= FILES_MIN or sum(written[path].st_size for path in files) >= BYTES_MIN):
        return
    make_folder(days)
    sound, new = _merged(files, {identity(row) for row in later})
    for name, lines in sorted(new.items()):
        if name >= _day(before_ms):
            _append_whole(days / f"{name}.jsonl", b"".join(lines))
    summary.add([*later, *(from_line(line) for lines in new.values() for line in lines)])
    summary.sizes = {day.name: size for day, size in _sizes_of(days).items()}
    summary.merged |= {_name(path, folder): written[path].st_size for path in sound}
    _write(days, summary)
    _delete_merged(folder, summary)


def _delete_merged(folder: Path, summary: Summary) -> None:
    if not summary.merged:
        return
    for name, size in summary.merged.items():
        path = folder / name
        with suppress(FileNotFoundError):
            if path.stat().st_size == size:
                path.unlink()
    summary.merged = {}
    _write(folder / DAYS, summary)


def _merged(files: Iterable[Path], known: set[tuple[object, ...]]) -> tuple[list[Path], dict[str, list[bytes]]]:
    """Returns the files whose lines are all sound, and day → their lines that are not known."""
    read: list[Path] = []
    rows: dict[tuple[object, ...], tuple[TurnEnded, bytes]] = {}
    for path in files:
        try:
            found = list(rows_in(path, lambda line: (from_line(line), line)))
        except Corrupt:
            continue  # stays where it is, for a person to look at
        read.append(path)
        rows |= {identity(row): (row, line) for row, line in found}
    new: dict[str, list[bytes]] = defaultdict(list)
    for row in each_once(row for row, _ in rows.values()):
        if identity(row) not in known:
            new[_day(row.released_at_ms)].append(rows[identity(row)][1])
    return read, new


def _append_whole(path: Path, lines: bytes) -> None:
    """Appends lines, after the last whole line: a crash may have left a part of one."""
    fd = open_file(path, os.O_RDWR)
    with os.fdopen(fd, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end and os.pread(fd, 1, end - 1) != b"\n":
            end -= 1
        file.truncate(end)
        file.seek(end)
        file.write(lines)
        file.flush()
        os.fsync(fd)


def _stored(days: Path, on_damage: OnDamage | None = None) -> tuple[Summary, list[TurnEnded]]:
    """Returns the summary of the days, and their turns that are not in it: all turns, if there is none that can be read."""
    summary = Summary()
    with suppress(FileNotFoundError, Damaged):
        summary = _from_json((days / SUMMARY).read_bytes())
    later: list[TurnEnded] = []
    for day, size in sorted(_sizes_of(days).items()):
        known = summary.sizes.get(day.name, 0)
        if size > known:
            later += rows_in(day, from_line, on_damage, offset=known)
    return summary, each_once(later)


def _sizes_of(days: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in days.glob("*.jsonl")}


def _write(days: Path, summary: Summary) -> None:
    data = {
        "format": FORMAT,
        "sizes": summary.sizes,
        "merged": summary.merged,
        "totals": turn_totals.to_json(summary.totals),
        "rows": [json.loads(to_line(row)) for row in summary.rows],
    }
    write_file(days / SUMMARY, json.dumps(data) + "\n")


def _from_json(text: bytes) -> Summary:
    data = parsed(text)
    if format_of(data) > FORMAT:
        raise Damaged("a newer format")  # the turns themselves say whether this version can read them
    sizes, merged = _sizes(data.get("sizes")), _sizes(data.get("merged"))
    try:
        rows = [from_line(json.dumps(row)) for row in listed(data.get("rows"))]
    except LakegateError as error:
        raise Damaged("rows of a newer format") from error
    return Summary(rows=rows, totals=turn_totals.from_json(data.get("totals") or {}), sizes=sizes, merged=merged)


def _sizes(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or not all(isinstance(size, int) and size >= 0 for size in value.values()):
        raise Damaged("not the sizes of files")
    return value


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Holds the lock of those who merge; yields False if another process holds it, or there is no ledger yet."""
    if not folder.is_dir():
        yield False
        return
    fd = open_file(folder / "merge.lock", os.O_RDWR)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _days(storage: str | os.PathLike[str], lock: str | None) -> Iterator[Path]:
    folder = quote(lock, safe="") if lock is not None else "*"
    return (Path(storage) / "ledger").glob(f"{folder}/{DAYS}/*.jsonl")


def _day(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_ms // 1000))
