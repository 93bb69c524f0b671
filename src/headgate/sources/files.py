"""Changes from files: JSON lines, or Parquet; read without Spark.

JSON lines: `{"seq", "tx", "table", "op", "before", "after"}`, and `sql` with the op `ddl`. Parquet: columns `seq`, `op`,
`before`, `after` (JSON), one that says the transaction, and `table` unless all rows belong to one. A transaction ends where
its name changes, or at the end of the file; a file never ends inside one.
"""

from __future__ import annotations

import contextlib
import glob
import heapq
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from headgate.core.keys import numbers, places
from headgate.core.keys.change import Change, Op
from headgate.errors import Corrupt, InvalidRequest, Unavailable

Format = Literal["json", "parquet"]
OPS = frozenset(get_args(Op)) - {"mark"}
PARQUET_ROWS = 10_000
"""So many rows are decoded at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One transaction of one file."""

    first: int
    file: int
    changes: tuple[Change, ...] = field(compare=False)

    def __lt__(self, other: _Group) -> bool:
        return (self.first, self.file) < (other.first, other.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFiles:
    """A file, a folder or a glob of changes. See `ChangeSource`.

    Files are merged by `seq`, whatever they are called: what counts is the place in the source.
    """

    files: str
    format: Format | None = None
    """None: by the ending, `.parquet` or not."""
    table: str | None = None
    """The target table of changes that do not say theirs."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Source table → target table; others keep their name."""
    transaction: str = "tx"
    """The column or the key that says the transaction."""

    def transactions(
        self, after: int, place: str | None = None, *, until: str | None = None
    ) -> Iterator[tuple[Change, ...]]:
        if after >= 0:
            places.read(places.FILES, after, place, at=at(self.files))
        if until is not None:
            return  # `seq` says by itself where a batch that was begun ends: the next call brings its transactions
        last = after
        for group in self._merged():
            new = tuple(change for change in group.changes if change.seq > last)
            if not new:
                continue  # delivered before
            if len(new) < len(group.changes) and group.changes[0].seq > after:
                raise Corrupt(
                    "transactions of the source lie within each other; nothing more was written",
                    advice="Let the source number its changes in the order of their transactions' ends",
                    position=new[0].seq,
                )
            last = new[-1].seq
            yield new

    def fingerprint(self) -> object:
        """Changes when a file comes, goes or is written: cheap to ask for, in place of reading all again."""
        return tuple(stat_of(paths_of(self.files)))

    def close(self) -> None:
        """Nothing is kept open."""

    def _merged(self) -> Iterator[_Group]:
        """The transactions of all files by their first `seq`; only files that overlap are open side by side."""
        waiting = []
        for number, path in enumerate(paths_of(self.files)):
            groups = self._groups(path, number)
            first = next(groups, None)
            groups.close()
            if first is not None:
                waiting.append((first.first, number, path))
        waiting.sort(reverse=True)
        heap: list[tuple[_Group, Iterator[_Group]]] = []
        while waiting or heap:
            while waiting and (not heap or waiting[-1][0] <= heap[0][0].first):
                _, number, path = waiting.pop()
                groups = self._groups(path, number)
                heapq.heappush(heap, (next(groups), groups))
            group, rest = heapq.heappop(heap)
            yield group
            following = next(rest, None)
            if following is not None:
                heapq.heappush(heap, (following, rest))

    def _groups(self, path: Path, number: int) -> Generator[_Group, None, None]:
        is_parquet = self.format == "parquet" or (self.format is None and path.suffix == ".parquet")
        group: list[Change] = []
        last = -1
        for change in self._parquet(path) if is_parquet else self._json(path):
            if group and (change.tx is None or change.tx != group[-1].tx):
                yield _Group(first=group[0].seq, file=number, changes=tuple(group))
                group = []
            if change.seq < last:
                raise Corrupt("a file of changes is not in the order of seq", file=path, position=change.seq)
            if group and change.seq == last:
                continue  # the same change twice
            last = change.seq
            group.append(change)
        if group:
            yield _Group(first=group[0].seq, file=number, changes=tuple(group))

    def _json(self, path: Path) -> Iterator[Change]:
        with _opened(path) as lines:
            for number, data in enumerate(lines, 1):
                try:
                    line = data.decode()
                except UnicodeDecodeError as error:
                    raise Corrupt("a line is not UTF-8", file=path, line=number) from error
                if line.strip():
                    try:
                        record = numbers.loads(line)
                    except ValueError as error:
                        raise Corrupt(f"a line is not JSON: {error}", file=path, line=number) from error
                    yield self._change(record, path, number)

    def _parquet(self, path: Path) -> Iterator[Change]:
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
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=wanted):
                for record in batch.to_pylist():
                    row += 1
                    for image in ("before", "after"):
                        if isinstance(record.get(image), str):
                            try:
                                record[image] = numbers.loads(record[image])
                            except ValueError as error:
                                raise Corrupt(f"{image} is not JSON: {error}", file=path, row=row) from error
                    yield self._change(record, path, row)

    def _change(self, record: Any, path: Path, line: int) -> Change:
        def refuse(what: str) -> Corrupt:
            return Corrupt(f"not a change: {what}; nothing of it was written", file=path, line=line)

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
            seq=seq, tx=None if tx is None else str(tx), table=self.tables.get(table, table), op=cast(Op, op),
            before=before, after=after, sql=sql, is_partial=op == "u",
            place=_place(self.files),
        )  # fmt: skip


@cache
def _place(files: str) -> str:
    return places.written(places.FILES, {"at": at(files)})


def at(files: str) -> str:
    """What tells these files from others, on one machine."""
    return os.path.abspath(files)


def paths_of(files: str) -> list[Path]:
    """A folder's files, a file, or those of a glob, by name; hidden ones and those that begin with _ are left out.

    Raises:
        Unavailable: There is none, and no folder either.
    """
    place = Path(files)
    if place.is_dir():
        found = sorted(place.iterdir())
    else:
        found = [place] if place.is_file() else [Path(one) for one in sorted(glob.glob(files))]
    paths = [path for path in found if path.is_file() and not path.name.startswith((".", "_"))]
    if not paths and not place.is_dir():
        raise Unavailable("there is no file of changes", files=files)
    return paths


def stat_of(paths: Iterable[Path]) -> Iterator[object]:
    """What differs once a file was written."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # it was moved away just now
            stat = path.stat()
            yield (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise Unavailable(f"a file of changes cannot be read: {error.strerror}", file=path) from error
