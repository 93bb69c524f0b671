"""Compares a target with its source as of the position that the target has, and lists what differs. Nothing is changed.

Rules for editors: whether two values are the same is asked in the target, after the cast to the column's type. A checksum over
texts would call 1.0 and 1.00, or one moment in two time zones, a difference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from lakegate.errors import InvalidRequest, Unavailable
from lakegate.syncs.plan.apply_protocol import Progress
from lakegate.syncs.plan.change import Image
from lakegate.syncs.plan.dead_letters import KeptRow
from lakegate.syncs.plan.difference import Difference
from lakegate.syncs.plan.net_changes import Key, Net, NetRow, canonical
from lakegate.syncs.plan.record import Record
from lakegate.syncs.plan.table_schema import TableSchema
from lakegate.syncs.ports import ChangeSource
from lakegate.syncs.replay import Replay

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
    set_apart: int = 0
    """How many of the differences are of rows that are set apart."""
    notes: tuple[str, ...] = ()
    """What of the table was not compared, or is doubtful."""

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
    """Rows that wait in `lakegate_dead`: they differ because the target refused them."""
    tables: tuple[ComparedTable, ...]
    behind: int = 0
    """How many records the source has behind the target's position, which a run will bring."""
    unfinished: int = 0
    """How many records belong to transactions whose end has not come."""
    passed_over: int = 0
    """How many records the sync does not see though they are there: they are compared, too."""
    unread: int = 0
    """How many records cannot be read: what they say was not compared."""

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

    def kept_rows(self, stream: str) -> Sequence[KeptRow]:
        """Rows that are set apart."""
        ...


class Expectation(Protocol):
    """The rows of the source, as found in another way than by the sync."""

    @property
    def troubles(self) -> Mapping[str, str]:
        """Table → why its rows are not known."""
        ...

    def is_whole(self, name: str) -> bool:
        """Whether all rows of the table are known."""
        ...

    def chunks(self, name: str, rows_max: int) -> Iterator[list[tuple[Key, dict[str, object]]]]:
        """The rows of a table in parts: key and image."""
        ...


class ReadRecords(Protocol):
    """A source's records as they were read without the sync's reader."""

    @property
    def shows_actions(self) -> bool:
        """Whether the source says what actions of foreign keys did."""
        ...

    @property
    def left_out(self) -> Mapping[str, set[str]]:
        """Target table → columns whose values could not be read."""
        ...

    @property
    def tables(self) -> Mapping[str, Mapping[str, None]]:
        """Target table → the source's tables whose records are for it."""
        ...

    @property
    def beyond(self) -> int:
        """How many records lie behind the target's position."""
        ...

    @property
    def unfinished(self) -> int:
        """How many belong to transactions whose end has not come."""
        ...

    @property
    def unread(self) -> int:
        """How many cannot be read."""
        ...

    def in_order(self, *, with_beyond: bool) -> Iterator[Record]:
        """Up to the target's position, or all."""
        ...


Found = Callable[[ComparedTable, Sequence[Difference], Callable[[Key], Image | None]], None]
"""Told of each table: its differences, and what finds the source's row of a key."""


def verify(
    source: ChangeSource,
    target: ComparedTarget,
    *,
    stream: str,
    listed_max: int = LISTED_MAX,
    read: Callable[[Progress], contextlib.AbstractContextManager[ReadRecords]] | None = None,
    has_more: Callable[[Progress], bool] = lambda progress: True,
    found: Found = lambda table, differences, row: None,
) -> Verified:
    """The target, compared with the source at the target's own position.

    Args:
        source: Asked for its rows, if it knows them, and for its changes where `read` is not given.
        target: Its stream is not taken over: a writer may go on meanwhile.
        stream: Under this name the target knows the position.
        listed_max: So many differences of a table are listed.
        read: Reads the source's records in another way than the sync does.
        has_more: Whether the sync would apply more; if not, records behind the position were passed over, and are compared.
        found: Told of each table's differences.

    Raises:
        InvalidRequest: The target has nothing of this stream yet.
        Unavailable: A batch was begun and is not complete, so that the target is at no position of the source.
    """

    def work(comparison: Comparison) -> Verified:
        progress = begun(comparison, stream)
        reading = (read or (lambda progress: contextlib.nullcontext(_Plain(source, progress))))(progress)
        with reading as records:
            is_all = bool(records.beyond) and not has_more(progress)
            # Tables that only the actions of foreign keys touch are named, too.
            tables, names = _met(target, [*records.tables])
            with Replay(tables, has_actions=not records.shows_actions) as replay:
                replay.take(records.in_order(with_beyond=is_all))
                compared = tuple(
                    _of_table(name, tables, replay, records, comparison, listed_max, target, found) for name in names
                )
            return Verified(
                stream=stream, position=progress.position, last_batch=progress.last_batch, set_apart=comparison.set_apart,
                tables=compared, behind=0 if is_all else records.beyond, unfinished=records.unfinished,
                passed_over=records.beyond if is_all else 0, unread=records.unread,
            )  # fmt: skip

    return marked(target.compare(stream, work), target.kept_rows(stream))


def begun(comparison: Comparison, stream: str) -> Progress:
    """Where the target is.

    Raises:
        InvalidRequest: The target has nothing of this stream yet.
        Unavailable: A batch was begun and is not complete.
    """
    progress = comparison.progress
    if progress is None or progress.last_batch == 0:
        raise InvalidRequest(
            "the target has nothing of this source yet; nothing was compared",
            advice="First run: lakegate sync run",
            stream=stream,
        )
    if progress.pending is not None:
        raise Unavailable(
            "a batch was begun and is not complete; nothing was compared",
            advice="Let it be finished first: lakegate sync run",
            position=progress.position,
        )
    return progress


def marked(verified: Verified, letters: Sequence[KeptRow]) -> Verified:
    """With the differences of rows that are set apart marked as such."""
    known = {(one.table, canonical(one.key)) for one in letters}

    def of(table: ComparedTable) -> ComparedTable:
        listed = tuple(
            replace(one, is_set_apart=True) if (one.table, canonical(one.key)) in known else one for one in table.listed
        )
        return replace(table, listed=listed, set_apart=sum(one.is_set_apart for one in listed))

    return replace(verified, tables=tuple(of(table) for table in verified.tables))


def as_net(
    differences: Sequence[Difference], row: Callable[[Key], Image | None], seq: int, first: int
) -> tuple[NetRow, ...]:
    """What makes rows of the target as they are at the source: rows of one batch, numbered from `first`."""
    rows: list[NetRow] = []
    for one in differences:
        image = None if one.kind == "extra" else row(one.key)
        if one.kind == "extra" or image is not None:
            rows.append(NetRow(first + len(rows), one.table, one.key, image, None, seq))
    return tuple(rows)


def repair_net(rows: Sequence[NetRow], progress: Progress) -> Net:
    """A batch of rows that were found to differ, at the target's position."""
    return Net(rows=tuple(rows), changes=len(rows), through=progress.position, place=progress.place)


@dataclass(slots=True)
class _Plain:
    """The changes that a source says, or its rows, as records."""

    source: ChangeSource
    progress: Progress
    beyond: int = 0
    unfinished: int = 0
    unread: int = 0

    @property
    def shows_actions(self) -> bool:
        """Whether the source says what actions of foreign keys did, or its rows themselves."""
        return isinstance(self.source, KnowsItsRows)

    @property
    def left_out(self) -> Mapping[str, set[str]]:
        return {}

    @property
    def tables(self) -> Mapping[str, Mapping[str, None]]:
        if isinstance(self.source, KnowsItsRows):
            return {name: {} for name in self.source.target_tables}
        return {record.table: {} for record in self.in_order(with_beyond=False) if record.op in ("c", "u", "d", "t")}

    def in_order(self, *, with_beyond: bool) -> Iterator[Record]:
        if isinstance(self.source, KnowsItsRows):
            for table, row in self.source.rows_at(self.progress.position):
                yield Record(table=table, op="c", before=None, after=row)
            return
        for group in self.source.transactions(-1):
            if group[0].seq > self.progress.position:
                return
            for one in group:
                yield Record(table=one.table, op=one.op, before=one.before, after=one.after, tx=one.tx)


def _met(target: ComparedTarget, names: Sequence[str]) -> tuple[dict[str, TableSchema], list[str]]:
    """These tables and those that actions of foreign keys change with them; and all names, in order."""
    known: dict[str, TableSchema] = {}
    waiting, met = list(names), list(names)
    while waiting:
        fresh = target.tables(waiting)
        known.update({name: table for name, table in fresh.items() if table.identity})
        waiting = []
        for table in fresh.values():
            for key in table.acting:
                if key.table not in met:
                    waiting.append(key.table)
                    met.append(key.table)
    return known, met


def _of_table(
    name: str,
    tables: Mapping[str, TableSchema],
    replay: Replay,
    records: ReadRecords,
    comparison: Comparison,
    listed_max: int,
    target: ComparedTarget,
    found: Found,
) -> ComparedTable:
    if name not in tables:
        why = "it has no key" if name in target.tables([name]) else "the target has no such table"
        return ComparedTable(table=name, at_source=0, in_target=0, not_compared=why)
    if name not in records.tables:
        why = "no record is of it: only the actions of foreign keys change it here; compare it with --source"
        return ComparedTable(table=name, at_source=0, in_target=0, not_compared=why)
    notes = []
    if records.left_out.get(name):
        notes.append(f"not compared, as the type is not known here: {', '.join(sorted(records.left_out[name]))}")
    if len(records.tables[name]) > 1:
        notes.append(f"tables of the source that meet in it: {', '.join(records.tables[name])}")
    return of_table(tables[name], replay, comparison, listed_max, notes, found, replay_row(replay, name))


class SourceDatabase(Expectation, Protocol):
    """The source's own database, at one moment."""

    def meet(self, source_name: str, target: TableSchema) -> str | None:
        """Finds a table; why it cannot be compared, or None."""
        ...

    def notes(self, name: str) -> list[str]:
        """What of a table is not compared."""
        ...

    def row(self, name: str, key: Key) -> Image | None:
        """One row by its key; None if there is none."""
        ...


def verify_database(
    database: SourceDatabase,
    target: ComparedTarget,
    *,
    stream: str,
    tables: Mapping[str, str],
    listed_max: int = LISTED_MAX,
    has_more: Callable[[Progress], bool] = lambda progress: False,
    found: Found = lambda table, differences, row: None,
) -> Verified:
    """The target, compared with the source's database: both as they are now.

    Args:
        database: Opened.
        target: Its stream is not taken over.
        stream: Under this name the target knows the position.
        tables: Target table → the source's.
        listed_max: So many differences of a table are listed.
        has_more: Whether the sync would apply more: then the source may be ahead, and that is said.
        found: Told of each table's differences.

    Raises:
        InvalidRequest: The target has nothing of this stream yet.
        Unavailable: A batch was begun and is not complete.
    """

    def work(comparison: Comparison) -> Verified:
        progress = begun(comparison, stream)
        known, names = _met(target, list(tables))
        compared = []
        for name in names:
            why = "it has no key" if name in target.tables([name]) else "the target has no such table"
            if name in known and tables.get(name) == "":
                why = "several tables of the source meet in it"
            elif name in known:
                why = database.meet(tables.get(name, name), known[name]) or ""
            if why:
                compared.append(ComparedTable(table=name, at_source=0, in_target=0, not_compared=why))
                continue
            row = database_row(database, name)
            compared.append(of_table(known[name], database, comparison, listed_max, database.notes(name), found, row))
        return Verified(
            stream=stream, position=progress.position, last_batch=progress.last_batch, set_apart=comparison.set_apart,
            tables=tuple(compared), behind=int(has_more(progress)),
        )  # fmt: skip

    return marked(target.compare(stream, work), target.kept_rows(stream))


def database_row(database: SourceDatabase, name: str) -> Callable[[Key], Image | None]:
    """What finds the source's row of a key."""
    return lambda key: database.row(name, key)


def in_both(first: Verified, second: Verified) -> Verified:
    """Of two looks, the second with those differences alone that the first had, too: what moved in between is none."""
    before = {(one.table, canonical(one.key), one.kind) for table in first.tables for one in table.listed}

    def of(table: ComparedTable) -> ComparedTable:
        if len(table.listed) < table.differences:
            return replace(table, notes=(*table.notes, "too many differences to look at each twice"))
        listed = tuple(one for one in table.listed if (one.table, canonical(one.key), one.kind) in before)
        kinds = [one.kind for one in listed]
        return replace(
            table, listed=listed, missing=kinds.count("missing"), extra=kinds.count("extra"),
            different=len(kinds) - kinds.count("missing") - kinds.count("extra"),
            set_apart=sum(one.is_set_apart for one in listed),
        )  # fmt: skip

    return replace(second, tables=tuple(of(table) for table in second.tables))


def replay_row(replay: Replay, name: str) -> Callable[[Key], Image | None]:
    """What finds the source's row of a key."""
    return lambda key: replay.row(name, key)


def of_table(
    table: TableSchema,
    expected: Expectation,
    comparison: Comparison,
    listed_max: int,
    notes: Sequence[str],
    found: Found,
    row: Callable[[Key], Image | None],
) -> ComparedTable:
    """One table, compared in ranges of rows."""
    listed: list[Difference] = []
    at_source = missing = different = 0
    if table.name in expected.troubles:
        return ComparedTable(table=table.name, at_source=0, in_target=0, not_compared=expected.troubles[table.name])
    for rows in expected.chunks(table.name, RANGE_ROWS):
        at_source += len(rows)
        differ = comparison.range(table, rows)
        missing += sum(one.kind == "missing" for one in differ)
        different += sum(one.kind != "missing" for one in differ)
        listed += differ[: listed_max - len(listed)]
    extra: int | None = None
    if expected.is_whole(table.name):
        extra, more = comparison.extras(table, listed_max - len(listed))
        listed += more
    compared = ComparedTable(
        table=table.name, at_source=at_source, in_target=comparison.rows(table), missing=missing, extra=extra,
        different=different, listed=tuple(listed), notes=tuple(notes),
    )  # fmt: skip
    found(compared, listed, row)
    return compared
