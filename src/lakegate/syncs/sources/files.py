"""Changes from files: JSON lines, plain or compressed, or Parquet; read without Spark.

JSON lines: `{"seq", "tx", "table", "op", "before", "after"}`, and `sql` with the op `ddl`. Parquet: columns `seq`, `op`,
`before`, `after` (JSON), one with the transaction, and `table` unless all rows belong to one table. A transaction ends where
its name changes, or at the end of the file; a file never ends inside a transaction.

Rules for editors: a change is left out only if an equal one was delivered from the same position. Files are identified by their
first bytes (`pieces`), so that late and rewritten files are detected.
"""

from __future__ import annotations

import contextlib
import glob
import heapq
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from lakegate.errors import Corrupt, InvalidRequest, LakegateError, NoFiles
from lakegate.syncs.plan import json_numbers, source_position
from lakegate.syncs.plan.change import NO_ROWS, Change, Op, Unread
from lakegate.syncs.plan.routes import Routes
from lakegate.syncs.sources.lines import RECORD_BYTES_MAX, TooLong, lines, record, unread
from lakegate.syncs.sources.pieces import Mark, Pieces

Format = Literal["json", "parquet"]
OPS = frozenset(get_args(Op)) - NO_ROWS
PARQUET_ROWS = 10_000
"""The number of rows that are decoded together."""
UNREAD_MAX = 10_000
"""The maximum number of consecutive unreadable lines. More of them mean that this is not a file of changes."""
PLACES_MAX = 20
"""The maximum number of positions per pass that record which files were read to their ends: each position names all files."""


class _NoChange(ValueError):
    """A record is not a change. The text of the error says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A transaction of one file."""

    first: int
    file: int
    path: str = field(compare=False)
    changes: tuple[Change, ...] = field(compare=False)
    fresh: int = field(compare=False)
    """The number of its last changes that are new since the previous pass."""

    def __lt__(self, other: _Group) -> bool:
        return (self.first, self.file) < (other.first, other.file)


@dataclass(slots=True)
class _Joined:
    """Transactions with common positions, which are delivered together."""

    changes: list[Change] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    """The file of each change."""
    late: dict[int, str] = field(default_factory=dict)
    """Index of a change → its file, for changes that are new since the previous pass."""
    last: int = -1
    """The last position."""
    at: dict[int, list[int]] = field(default_factory=dict)
    """Position → indexes of changes; filled when a second group is added."""
    met: dict[int, set[int]] = field(default_factory=dict)
    """File → indexes of the changes that the file contains, too."""

    def join(self, group: _Group) -> None:
        """Adds the changes that are not present yet.

        Raises:
            Corrupt: The transactions overlap, or belong to two sources.
        """
        if self.changes and not self.at:
            for n, one in enumerate(self.changes):
                self.at.setdefault(one.seq, []).append(n)
        for n, change in enumerate(group.changes):
            is_fresh = n >= len(group.changes) - group.fresh
            alike = self.at.get(change.seq, ())
            same = [k for k in alike if _content(self.changes[k]) == _content(change)]
            met = self.met.setdefault(group.file, set())
            other = next((k for k in same if self.files[k] != group.file and k not in met), None)
            if other is not None:
                met.add(other)
                if not is_fresh:
                    self.late.pop(other, None)
                continue
            if same and len(same) == len(alike):
                continue  # the change was written twice
            if (
                change.seq < self.last
                and self.at
                and not any(self.changes[k].tx == change.tx is not None for k in alike)
            ):
                what = "two different changes have the same position" if alike else "transactions of the source overlap"
                raise Corrupt(
                    f"{what}; nothing more was written",
                    advice="Let the source number its changes in the order of their transactions' ends; changes of two sources "
                    "belong into two syncs",
                    position=change.seq, file=group.path,
                )  # fmt: skip
            if is_fresh:
                self.late[len(self.changes)] = group.path
            self.changes.append(change)
            self.files.append(group.file)
        # Changes are compared only with changes of other groups.
        if self.at:
            self.at.clear()
        self.last = max(self.last, group.changes[-1].seq)


def _joined(groups: Iterator[_Group]) -> Iterator[_Joined]:
    """Yields transactions in the order of their positions; transactions with common positions are joined."""
    joined: _Joined | None = None
    for group in groups:
        if joined is not None and group.first <= joined.last:
            joined.join(group)
            continue
        if joined is not None:
            yield joined
        joined = _Joined()
        joined.join(group)
    if joined is not None:
        yield joined


def _content(change: Change) -> object:
    return change.table, change.op, change.before, change.after, change.sql


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFiles:
    """A file, a folder or a glob of changes. See `ChangeSource`.

    Files are merged by `seq`, regardless of their names: only the position in the source counts.
    """

    files: str
    format: Format | None = None
    """None: decided by the suffix, `.parquet` or another."""
    table: str | None = None
    """The target table of changes that do not name one."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Source table → target table. Unlisted tables keep their name."""
    transaction: str = "tx"
    """The column or key that contains the transaction."""
    sets_apart: bool = False
    """Whether an unreadable line is delivered as a change of the op `unread` instead of an error."""
    _pieces: Pieces = field(default_factory=Pieces, compare=False, repr=False)

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        has_place = after >= 0 or place is not None
        was: Mapping[str, Any] = (
            source_position.read(source_position.FILES, after, place, at=at(self.files)) if has_place else {}
        )
        if until is not None:
            return  # `seq` alone determines the end of an unfinished batch: the next call yields it
        known: dict[str, Mark] = {name: (one[0], one[1], one[2], one[3]) for name, one in was.get("files", {}).items()}
        lasts = {name: one[4] for name, one in was.get("files", {}).items() if len(one) > 4}

        def is_read(name: str, mark: Mark) -> bool:
            return mark[0] == 0 or lasts.get(name, after + 1) <= after

        paths = paths_of(self.files)
        marks, names = self._pieces.recognize(paths, known, is_read)
        # For a known file, lines from this number on are new. For an unknown file, all lines are new.
        news = {name: known[names[name]][2] if name in names else 0 for name in marks} if known else {}
        ends: dict[str, int] = {}
        routes = Routes(self.tables, dict(was.get("tables", {})))
        apart = {name: was.get("apart", {}).get(old, 0) for name, old in names.items()}
        passed: list[tuple[Path, int, Unread]] = []
        text, ended = self._place(marks, ends, routes, apart), 0
        held: list[Change] = []
        last = after

        def take_passed() -> tuple[Change, ...]:
            """Returns unreadable lines, each once, at the last position, because they have no position of their own."""
            fresh = list[Change]()
            for path, line, one in passed:
                if line > apart.get(str(path), 0):
                    apart[str(path)] = line
                    fresh.append(Change(seq=last, tx=None, table="", op="unread", unread=one))
            passed.clear()
            return (*fresh[:-1], replace(fresh[-1], place=self._place(marks, ends, routes, apart))) if fresh else ()

        try:
            for joined in _joined(self._merged(paths, marks, news, ends, passed)):
                if passed:
                    if held:
                        yield tuple(held)
                        last, held = held[-1].seq, []
                    if fresh := take_passed():
                        yield fresh
                        text, ended = fresh[-1].place or "", len(ends)
                new = [(k, one) for k, one in enumerate(joined.changes) if one.seq > after]
                for k in sorted(joined.late):
                    if joined.changes[k].seq <= after:
                        raise self._came_late(joined.late[k], joined.changes[k].seq, after)
                if not new:
                    continue  # delivered before
                if held:
                    yield tuple(held)
                    last, held = held[-1].seq, []
                if len(ends) - ended > len(marks) // PLACES_MAX:
                    text, ended = self._place(marks, ends, routes, apart), len(ends)
                for _, one in sorted(new, key=lambda each: each[1].seq):
                    table = routes.target(one.table, one.table)
                    held.append(one if table == one.table else replace(one, table=table))
                held[-1] = replace(held[-1], place=text)
        except LakegateError:
            if held and held[-1].place is not None:
                yield tuple(held)
            raise
        if held:
            yield (*held[:-1], replace(held[-1], place=self._place(marks, ends, routes, apart)))
            last = held[-1].seq
        if fresh := take_passed():
            yield fresh

    def setting_apart(self) -> ChangeFiles:
        """See `SetsApart`."""
        return replace(self, sets_apart=True)

    @staticmethod
    def _came_late(file: str, position: int, after: int) -> Corrupt:
        return Corrupt(
            "a change came late: its position is not above that of what was applied, and it was in no file that was read; "
            "nothing more was written",
            advice=f"Give it a position above {after} if it is still to be applied, or take its file out of the folder",
            file=file, position=position,
        )  # fmt: skip

    def _place(
        self, marks: Mapping[str, Mark], ends: Mapping[str, int], routes: Routes, apart: Mapping[str, int]
    ) -> str:
        files = {name: [*mark, *([ends[name]] if name in ends else [])] for name, mark in marks.items()}
        # File → the last of its lines that was quarantined.
        more = {"apart": {name: line for name, line in apart.items() if line}} if any(apart.values()) else {}
        return source_position.written(
            source_position.FILES, {"at": at(self.files), "files": files, "tables": routes.met, **more}
        )

    def fingerprint(self) -> object:
        """Returns a value that changes when a file is added, removed or written; cheaper than reading all files."""
        return tuple(stat_of(paths_of(self.files)))

    def close(self) -> None:
        """Does nothing: no file is kept open."""

    def _merged(
        self,
        paths: Iterable[Path],
        marks: Mapping[str, Mark],
        news: Mapping[str, int],
        ends: dict[str, int],
        passed: list[tuple[Path, int, Unread]],
    ) -> Iterator[_Group]:
        """Yields the transactions of all files by first `seq`; only overlapping files are open at the same time."""
        waiting = []
        for number, path in enumerate(paths):
            groups = self._groups(path, number, marks, news, {}, passed)
            first = next(groups, None)
            groups.close()
            if first is None:
                ends[str(path)] = -1
            else:
                waiting.append((first.first, number, path))
        waiting.sort(reverse=True)
        heap: list[tuple[_Group, Iterator[_Group]]] = []
        while waiting or heap:
            while waiting and (not heap or waiting[-1][0] <= heap[0][0].first):
                _, number, path = waiting.pop()
                groups = self._groups(path, number, marks, news, ends, passed)
                heapq.heappush(heap, (next(groups), groups))
            group, rest = heapq.heappop(heap)
            yield group
            following = next(rest, None)
            if following is not None:
                heapq.heappush(heap, (following, rest))

    def _groups(
        self,
        path: Path,
        number: int,
        marks: Mapping[str, Mark],
        news: Mapping[str, int],
        ends: dict[str, int],
        passed: list[tuple[Path, int, Unread]],
    ) -> Generator[_Group, None, None]:
        is_parquet = self.format == "parquet" or (self.format is None and path.suffix == ".parquet")
        name, group, last, old = str(path), list[Change](), -1, 0

        def closed() -> _Group:
            changes = _distinct(group)
            return _Group(first=group[0].seq, file=number, path=name, changes=changes, fresh=max(0, len(changes) - old))

        # Lines that are written meanwhile are left to the next pass, which recognizes them as new.
        new_from = news.get(name, 0) if news else None
        read = self._parquet(path) if is_parquet else self._json(path, marks[name][2])
        for line, change in read:
            if isinstance(change, Unread):
                if not self.sets_apart or len(passed) >= UNREAD_MAX:
                    raise Corrupt(change.reason, **change.where)
                passed.append((path, line, change))
                continue
            if group and (change.tx is None or change.tx != group[-1].tx):
                yield closed()
                group, old = [], 0
            if change.seq < last:
                raise Corrupt("a file of changes is not in the order of seq", file=path, position=change.seq)
            last = change.seq
            group.append(change)
            old += new_from is None or line <= new_from or (is_parquet and new_from > 0)
        if group:
            yield closed()
        ends[name] = last

    def _json(self, path: Path, lines_max: int) -> Iterator[tuple[int, Change | Unread]]:
        for number, line in enumerate(lines(path), 1):
            if number > lines_max:
                return
            if isinstance(line, bytes) and not line.strip():
                continue
            try:
                found: Change | Unread = self._change(record(line))
            except _NoChange as error:
                reason = f"not a change: {error}; nothing of it was written"
                found = unread(line, reason, {"file": path, "line": number})
            except ValueError as error:
                found = unread(line, f"a line is no change: {error}", {"file": path, "line": number})
            yield number, found

    def _parquet(self, path: Path) -> Iterator[tuple[int, Change | Unread]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise Corrupt(f"not a Parquet file: {error}", file=path) from error
        with file:
            names = set(file.schema_arrow.names)
            missing = [one for one in ("seq", "op", self.transaction) if one not in names]
            if missing or not names & {"before", "after"}:
                raise InvalidRequest(
                    "a Parquet file of changes lacks a column; nothing was written",
                    advice="Columns: seq, op, before, after, and the one that `transaction` names",
                    file=path,
                    missing=", ".join(missing) or "before, after",
                )
            wanted = [one for one in ("seq", "op", "table", "before", "after", "sql", self.transaction) if one in names]
            row = 0
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            largest = max((one.total_byte_size // max(1, one.num_rows) for one in groups), default=0)
            size = max(1, min(PARQUET_ROWS, RECORD_BYTES_MAX // max(1, largest)))
            for batch in file.iter_batches(batch_size=size, columns=wanted):
                for found in batch.to_pylist():
                    row += 1
                    yield row, self._of_row(found, path, row)

    def _of_row(self, found: dict[str, Any], path: Path, row: int) -> Change | Unread:
        reason = ""
        for image in ("before", "after"):
            text = found.get(image)
            if isinstance(text, str):
                try:
                    if len(text) > RECORD_BYTES_MAX:
                        raise TooLong(text[:RECORD_BYTES_MAX].encode("utf-8", "replace"))
                    found[image] = json_numbers.loads(text)
                except (ValueError, RecursionError) as error:
                    what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                    reason = f"{image}: {what}" if isinstance(error, TooLong) else f"{image} is not JSON: {what}"
        try:
            return unread(found, reason, {"file": path, "row": row}) if reason else self._change(found)
        except _NoChange as error:
            return unread(found, f"not a change: {error}; nothing of it was written", {"file": path, "row": row})

    def _change(self, record: Any) -> Change:
        refuse = _NoChange
        if not isinstance(record, dict):
            raise refuse("not an object")
        seq, op, table = record.get("seq"), record.get("op"), record.get("table") or self.table
        if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
            raise refuse("seq is not a number from 0 on")
        if op not in OPS:
            raise refuse(f"op is none of {', '.join(sorted(OPS))}")
        if not isinstance(table, str):
            raise refuse("it names no table, and no table was given")
        before, after = record.get("before"), record.get("after")
        for name, image in (("before", before), ("after", after)):
            if image is not None and not isinstance(image, dict):
                raise refuse(f"{name} is not an object")
        if op in ("c", "u") and after is None:
            raise refuse("after is missing")
        sql = record.get("sql")
        if op == "ddl" and not isinstance(sql, str):
            raise refuse("sql is missing")
        tx = record.get(self.transaction)
        return Change(
            seq=seq, tx=None if tx is None else str(tx), table=table, op=cast(Op, op),
            before=before, after=after, sql=sql, is_partial=op == "u",
        )  # fmt: skip


def _distinct(changes: list[Change]) -> tuple[Change, ...]:
    """Returns the changes of a transaction without duplicates. Changes with a common position are kept if they differ: then
    `seq` is the position of the transaction."""
    found: list[Change] = []
    n = 0
    while n < len(changes):
        run = changes[n : n + 1]
        while n + len(run) < len(changes) and changes[n + len(run)].seq == run[0].seq:
            run.append(changes[n + len(run)])
        n += len(run)
        is_one = all(_content(one) == _content(run[0]) for one in run)
        found += run[:1] if is_one else run
    return tuple(found)


def at(files: str) -> str:
    """Returns the address of these files on one machine."""
    return os.path.abspath(files)


def paths_of(files: str) -> list[Path]:
    """Returns a folder's files, a file, or the files of a glob, by name; without hidden files and files that begin with _.

    Raises:
        NoFiles: There is no such file and no such folder.
    """
    place = Path(files)
    if place.is_dir():
        found = sorted(place.iterdir())
    else:
        found = [place] if place.is_file() else [Path(one) for one in sorted(glob.glob(files))]
    paths = [path for path in found if path.is_file() and not path.name.startswith((".", "_"))]
    if not paths and not place.is_dir():
        raise NoFiles(files=files)
    return paths


def stat_of(paths: Iterable[Path]) -> Iterator[object]:
    """Yields facts that differ after a file was written."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the file was moved meanwhile
            stat = path.stat()
            yield (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)
