"""Compares a target with its source at the target's position, and lists the differences. Changes nothing.

Rules for editors: the target compares values, after the cast to the column's type. A checksum over texts would report 1.0 and
1.00, or one moment in two time zones, as a difference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from lakegate.errors import InvalidRequest, Unavailable
from lakegate.syncs.plan.apply_protocol import SyncProgress
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
"""The number of rows that are compared together."""
LISTED_MAX = 100
"""The maximum number of differences listed per table; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTable:
    """The result for one table."""

    table: str
    at_source: int
    in_target: int
    missing: int = 0
    extra: int | None = 0
    """None if not checked, because the changes begin in the middle of the table's history."""
    different: int = 0
    listed: tuple[Difference, ...] = ()
    not_compared: str | None = None
    """The reason if the table was not compared."""
    set_apart: int = 0
    """The number of differences in quarantined rows."""
    notes: tuple[str, ...] = ()
    """Parts of the table that were not compared, or are doubtful."""

    @property
    def differences(self) -> int:
        """The number of rows that differ from the source."""
        return self.missing + self.different + (self.extra or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSync:
    """The result of comparing a target with its source, both at one position."""

    stream: str
    position: int
    last_batch: int
    set_apart: int
    """The number of rows in `lakegate_dead`: they differ because the target refused them."""
    tables: tuple[ComparedTable, ...]
    behind: int = 0
    """The number of source records after the target's position, which a run will apply."""
    unfinished: int = 0
    """The number of records of transactions that have not ended."""
    passed_over: int = 0
    """The number of records that the sync skips although they exist: they are compared, too."""
    unread: int = 0
    """The number of unreadable records, whose content was not compared."""

    @property
    def differences(self) -> int:
        """The number of rows that differ from the source."""
        return sum(table.differences for table in self.tables)


@runtime_checkable
class KnowsItsRows(Protocol):
    """A source that can return all rows at a position, instead of all changes since the beginning."""

    @property
    def target_tables(self) -> Sequence[str]:
        """The target tables of the source's rows; compared even if the source has no rows."""
        ...

    def rows_at(self, position: int) -> Iterator[tuple[str, Image]]:
        """Yields target table and whole row, in any order."""
        ...


class Comparison(Protocol):
    """A snapshot of a target, for any length of time."""

    progress: SyncProgress | None
    set_apart: int

    def rows(self, table: TableSchema) -> int:
        """Returns the number of rows of a table."""
        ...

    def range(self, table: TableSchema, rows: Sequence[tuple[Key, Image]]) -> Sequence[Difference]:
        """Returns the differences of these rows, in the columns of their images."""
        ...

    def extras(self, table: TableSchema, listed_max: int) -> tuple[int, Sequence[Difference]]:
        """Returns how many rows of the table were in no range, and some of them."""
        ...


class ComparedTarget(Protocol):
    """A target that can be compared."""

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        """See `TargetView`."""
        ...

    def compare(self, stream: str, work: Callable[[Comparison], R]) -> R:
        """Does `work` on a snapshot of the target. Tables that it writes are temporary and end with it."""
        ...

    def kept_rows(self, stream: str) -> Sequence[KeptRow]:
        """Returns quarantined rows."""
        ...


class Expectation(Protocol):
    """The rows of the source, computed independently of the sync."""

    @property
    def troubles(self) -> Mapping[str, str]:
        """Table → why its rows are unknown."""
        ...

    def is_whole(self, name: str) -> bool:
        """Returns whether all rows of the table are known."""
        ...

    def chunks(self, name: str, rows_max: int) -> Iterator[list[tuple[Key, dict[str, object]]]]:
        """Yields the rows of a table in chunks: key and image."""
        ...


class ReadRecords(Protocol):
    """The source's records, read without the sync's reader."""

    @property
    def shows_actions(self) -> bool:
        """Returns whether the source reports the effects of foreign key actions."""
        ...

    @property
    def left_out(self) -> Mapping[str, set[str]]:
        """Target table → columns whose values could not be read."""
        ...

    @property
    def tables(self) -> Mapping[str, Mapping[str, None]]:
        """Target table → the source tables of its records."""
        ...

    @property
    def beyond(self) -> int:
        """The number of records after the target's position."""
        ...

    @property
    def unfinished(self) -> int:
        """The number of records of transactions that have not ended."""
        ...

    @property
    def unread(self) -> int:
        """The number of unreadable records."""
        ...

    def in_order(self, *, with_beyond: bool) -> Iterator[Record]:
        """Yields the records up to the target's position, or all."""
        ...


Found = Callable[[ComparedTable, Sequence[Difference], Callable[[Key], Image | None]], None]
"""Called for each table with its differences, and a function that returns the source's row of a key."""


def verify(
    source: ChangeSource,
    target: ComparedTarget,
    *,
    stream: str,
    listed_max: int = LISTED_MAX,
    read: Callable[[SyncProgress], contextlib.AbstractContextManager[ReadRecords]] | None = None,
    has_more: Callable[[SyncProgress], bool] = lambda progress: True,
    found: Found = lambda table, differences, row: None,
) -> VerifiedSync:
    """Compares the target with the source at the target's own position.

    Args:
        source: Read for its rows, if it knows them, and for its changes if `read` is not given.
        target: Its stream is not taken over: a writer may continue meanwhile.
        stream: The name under which the target stores the position.
        listed_max: The maximum number of differences listed per table.
        read: Reads the source's records independently of the sync.
        has_more: Whether the sync would apply more. If not, records after the position were skipped, and are compared.
        found: Called with each table's differences.

    Raises:
        InvalidRequest: The target has nothing of this stream yet.
        Unavailable: A batch is unfinished, so the target is at no position of the source.
    """

    def work(comparison: Comparison) -> VerifiedSync:
        progress = begun(comparison, stream)
        reading = (read or (lambda progress: contextlib.nullcontext(_Plain(source, progress))))(progress)
        with reading as records:
            is_all = bool(records.beyond) and not has_more(progress)
            # `names` also contains tables that only foreign key actions change.
            tables, names = _met(target, [*records.tables])
            with Replay(tables, has_actions=not records.shows_actions) as replay:
                replay.take(records.in_order(with_beyond=is_all))
                compared = tuple(
                    _of_table(name, tables, replay, records, comparison, listed_max, target, found) for name in names
                )
            return VerifiedSync(
                stream=stream, position=progress.position, last_batch=progress.last_batch, set_apart=comparison.set_apart,
                tables=compared, behind=0 if is_all else records.beyond, unfinished=records.unfinished,
                passed_over=records.beyond if is_all else 0, unread=records.unread,
            )  # fmt: skip

    return marked(target.compare(stream, work), target.kept_rows(stream))


def begun(comparison: Comparison, stream: str) -> SyncProgress:
    """Returns the progress of the target.

    Raises:
        InvalidRequest: The target has nothing of this stream yet.
        Unavailable: A batch is unfinished.
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


def marked(verified: VerifiedSync, letters: Sequence[KeptRow]) -> VerifiedSync:
    """Marks the differences of quarantined rows."""
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
    """Returns the rows that make the target equal to the source: rows of one batch, numbered from `first`."""
    rows: list[NetRow] = []
    for one in differences:
        image = None if one.kind == "extra" else row(one.key)
        if one.kind == "extra" or image is not None:
            rows.append(NetRow(first + len(rows), one.table, one.key, image, None, seq))
    return tuple(rows)


def repair_net(rows: Sequence[NetRow], progress: SyncProgress) -> Net:
    """Returns a batch of rows that differ, at the target's position."""
    return Net(rows=tuple(rows), changes=len(rows), through=progress.position, place=progress.place)


@dataclass(slots=True)
class _Plain:
    """The changes or rows of a source, as records."""

    source: ChangeSource
    progress: SyncProgress
    beyond: int = 0
    unfinished: int = 0
    unread: int = 0

    @property
    def shows_actions(self) -> bool:
        """Returns whether the source delivers its rows, which include the effects of foreign key actions."""
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
    """Returns these tables with all tables that foreign key actions change; and all names, in order."""
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
        why = "it has no records: only foreign key actions change it; compare it with --source"
        return ComparedTable(table=name, at_source=0, in_target=0, not_compared=why)
    notes = []
    if records.left_out.get(name):
        notes.append(
            f"not compared, because the type is not supported here: {', '.join(sorted(records.left_out[name]))}"
        )
    if len(records.tables[name]) > 1:
        notes.append(f"source tables that go to this table: {', '.join(records.tables[name])}")
    return of_table(tables[name], replay, comparison, listed_max, notes, found, replay_row(replay, name))


class SourceDatabase(Expectation, Protocol):
    """A snapshot of the source's own database."""

    def meet(self, source_name: str, target: TableSchema) -> str | None:
        """Finds a table; returns why it cannot be compared, or None."""
        ...

    def notes(self, name: str) -> list[str]:
        """Returns the parts of a table that are not compared."""
        ...

    def row(self, name: str, key: Key) -> Image | None:
        """Returns one row by its key; None if it does not exist."""
        ...


def verify_database(
    database: SourceDatabase,
    target: ComparedTarget,
    *,
    stream: str,
    tables: Mapping[str, str],
    listed_max: int = LISTED_MAX,
    has_more: Callable[[SyncProgress], bool] = lambda progress: False,
    found: Found = lambda table, differences, row: None,
) -> VerifiedSync:
    """Compares the target with the source's database, both in their current state.

    Args:
        database: Opened.
        target: Its stream is not taken over.
        stream: The name under which the target stores the position.
        tables: Target table → source table.
        listed_max: The maximum number of differences listed per table.
        has_more: Whether the sync would apply more. Then the source may be ahead, and the result reports this.
        found: Called with each table's differences.

    Raises:
        InvalidRequest: The target has nothing of this stream yet.
        Unavailable: A batch is unfinished.
    """

    def work(comparison: Comparison) -> VerifiedSync:
        progress = begun(comparison, stream)
        known, names = _met(target, list(tables))
        compared = []
        for name in names:
            why = "it has no key" if name in target.tables([name]) else "the target has no such table"
            if name in known and tables.get(name) == "":
                why = "several source tables go to it"
            elif name in known:
                why = database.meet(tables.get(name, name), known[name]) or ""
            if why:
                compared.append(ComparedTable(table=name, at_source=0, in_target=0, not_compared=why))
                continue
            row = database_row(database, name)
            compared.append(of_table(known[name], database, comparison, listed_max, database.notes(name), found, row))
        return VerifiedSync(
            stream=stream, position=progress.position, last_batch=progress.last_batch, set_apart=comparison.set_apart,
            tables=tuple(compared), behind=int(has_more(progress)),
        )  # fmt: skip

    return marked(target.compare(stream, work), target.kept_rows(stream))


def database_row(database: SourceDatabase, name: str) -> Callable[[Key], Image | None]:
    """Returns a function that finds the source's row of a key."""
    return lambda key: database.row(name, key)


def in_both(first: VerifiedSync, second: VerifiedSync) -> VerifiedSync:
    """Returns the second result with only those differences that the first one had, too: others were changes in transit."""
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
    """Returns a function that finds the source's row of a key."""
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
    """Compares one table in ranges of rows."""
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
