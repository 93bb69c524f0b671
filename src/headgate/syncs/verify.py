"""Compares a target with its source as of the position that the target has, and lists what differs. Nothing is changed.

Rules for editors: whether two values are the same is asked in the target, after the cast to the column's type. A checksum over
texts would call 1.0 and 1.00, or one moment in two time zones, a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from headgate.core.keys.apply import Progress
from headgate.core.keys.change import Change, Image, batches
from headgate.core.keys.difference import Difference
from headgate.core.keys.fold import Key
from headgate.core.keys.schema import TableSchema
from headgate.errors import InvalidRequest, Unavailable
from headgate.ports import ChangeSource
from headgate.syncs.expected import CHANGES_MAX, Expected

R = TypeVar("R")
RANGE_ROWS = 20_000
"""So many rows are compared at once."""
LISTED_MAX = 100
"""So many differences of a table are listed; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTable:
    """What was found of one table."""

    table: str
    at_source: int
    in_target: int
    missing: int = 0
    extra: int | None = 0
    """None: not asked, because the changes begin in the middle of the table's history."""
    different: int = 0
    listed: tuple[Difference, ...] = ()
    not_compared: str | None = None
    """Why not."""

    @property
    def differences(self) -> int:
        """How many rows are not as at the source."""
        return self.missing + self.different + (self.extra or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A target and its source, both as of one position."""

    stream: str
    position: int
    last_batch: int
    set_apart: int
    """Rows that wait in `headgate_dead`: they differ because the target refused them."""
    tables: tuple[ComparedTable, ...]

    @property
    def differences(self) -> int:
        """How many rows are not as at the source."""
        return sum(table.differences for table in self.tables)


@runtime_checkable
class KnowsItsRows(Protocol):
    """A source that can say all rows as of a position, in place of all changes since the beginning."""

    @property
    def target_tables(self) -> Sequence[str]:
        """What its rows are for: compared, too, where it has none."""
        ...

    def rows_at(self, position: int) -> Iterator[tuple[str, Image]]:
        """Target table and whole row, in any order."""
        ...


class Comparison(Protocol):
    """A target as it is at one moment, however long one looks."""

    progress: Progress | None
    set_apart: int

    def rows(self, table: TableSchema) -> int:
        """How many a table has."""
        ...

    def range(self, table: TableSchema, rows: Sequence[tuple[Key, Image]]) -> Sequence[Difference]:
        """What differs of these rows, in the columns that their images say."""
        ...

    def extras(self, table: TableSchema, listed_max: int) -> tuple[int, Sequence[Difference]]:
        """Rows that no range of this table had: how many, and some."""
        ...


class ComparedTarget(Protocol):
    """A target that can be compared."""

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """See `TargetView`."""
        ...

    def compare(self, stream: str, work: Callable[[Comparison], R]) -> R:
        """Does `work` on the target as it is now; what is written to for it ends with it."""
        ...


def verify(source: ChangeSource, target: ComparedTarget, *, stream: str, listed_max: int = LISTED_MAX) -> Verified:
    """The target, compared with the source at the target's own position.

    Args:
        source: Read from its beginning, unless it knows its rows.
        target: Its stream is not taken over: a writer may go on meanwhile.
        stream: Under this name the target knows the position.
        listed_max: So many differences of a table are listed.

    Raises:
        InvalidRequest: The target has nothing of this stream yet.
        Unavailable: A batch was begun and is not complete, so that the target is at no position of the source.
    """

    def work(comparison: Comparison) -> Verified:
        progress = comparison.progress
        if progress is None or progress.last_batch == 0:
            raise InvalidRequest(
                "the target has nothing of this source yet; nothing was compared",
                advice="First run: headgate sync run",
                stream=stream,
            )
        if progress.pending is not None:
            raise Unavailable(
                "a batch was begun and is not complete; nothing was compared",
                advice="Let it be finished first: headgate sync run",
                position=progress.position,
            )
        names: list[str] = []
        tables: dict[str, TableSchema] = {}
        with Expected() as expected:

            def meet(said: Iterable[str]) -> None:
                fresh = [one for one in dict.fromkeys(said) if one not in names]
                names.extend(fresh)
                tables.update({n: table for n, table in target.tables(fresh).items() if table.identity})
                expected.meet(tables)

            meet(source.target_tables if isinstance(source, KnowsItsRows) else ())
            for batch in batches(_groups(source, progress), changes_max=CHANGES_MAX):
                meet(_tables_of(batch.changes))
                expected.take([one for one in batch.changes if one.table in tables])
            found = tuple(
                _compared(tables[name], expected, comparison, listed_max)
                if name in tables
                else ComparedTable(table=name, at_source=0, in_target=0, not_compared=_why(target, name))
                for name in names
            )
        return Verified(
            stream=stream, position=progress.position, last_batch=progress.last_batch,
            set_apart=comparison.set_apart, tables=found,
        )  # fmt: skip

    return target.compare(stream, work)


def _groups(source: ChangeSource, progress: Progress) -> Iterator[tuple[Change, ...]]:
    if isinstance(source, KnowsItsRows):
        for table, row in source.rows_at(progress.position):
            yield (Change(seq=progress.position, tx=None, table=table, op="c", after=row),)
        return
    for group in source.transactions(-1):
        if group[0].seq > progress.position:
            return
        yield group


def _tables_of(changes: Sequence[Change]) -> Iterator[str]:
    return (change.table for change in changes if change.op in ("c", "u", "d", "t"))


def _why(target: ComparedTarget, name: str) -> str:
    return "it has no key" if name in target.tables([name]) else "the target has no such table"


def _compared(table: TableSchema, expected: Expected, comparison: Comparison, listed_max: int) -> ComparedTable:
    listed: list[Difference] = []
    at_source = missing = different = 0
    for rows in expected.chunks(table.name, RANGE_ROWS):
        at_source += len(rows)
        found = comparison.range(table, rows)
        missing += sum(one.kind == "missing" for one in found)
        different += sum(one.kind != "missing" for one in found)
        listed += found[: listed_max - len(listed)]
    extra: int | None = None
    if expected.is_whole(table.name):
        extra, more = comparison.extras(table, listed_max - len(listed))
        listed += more
    return ComparedTable(
        table=table.name, at_source=at_source, in_target=comparison.rows(table), missing=missing, extra=extra,
        different=different, listed=tuple(listed),
    )  # fmt: skip
