"""The net effect of a batch: for each target row the final image, or that the row is deleted.

Rules for editors: a net effect describes only the *end* of a batch. Intermediate values can no longer conflict, so nothing here
looks at them. The values *before* the batch are read from the target, because the events may not contain them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, overload

from lakegate.errors import InvalidRequest
from lakegate.syncs.plan.change import NO_ROWS, Change, Image, ManyRows, Unread
from lakegate.syncs.plan.table_schema import TableSchema, refuse_columns
from lakegate.syncs.plan.values import BareNumber, BareText

Key = tuple[object, ...]
PLAIN = frozenset({int, str, BareNumber, BareText})
"""Types whose values need no conversion before a comparison of keys."""

EMPTY: tuple[object, ...] = ("", 0)  # False is 0, too
"""Values that a source sends for an unknown value of a NOT NULL column."""


class NetRow(NamedTuple):
    """The effect of a batch on one row of a table with a key. A tuple, because there are many."""

    n: int
    """The row's number within the batch, from 0, in the order of each row's first change."""
    table: str
    key: Key
    image: Image | None
    """The final image, as far as the events contain it; None if the row is deleted."""
    origin: Key | None
    """The row's key in the target, if its key changes. Columns that `image` lacks are read from there."""
    seq: int
    """The position of the row's last change."""
    is_partial: bool = False
    """Whether `image` lacks columns that the source's row has, so that only an existing row of the target can complete it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetCopies:
    """The number of rows equal to `image` that a batch adds to a table without a key (negative: deletes)."""

    table: str
    image: Image
    count: int
    seq: int


class FoundRows(Sequence[NetRow]):
    """Net rows that stay in the staging table and are looked up there one at a time."""

    def __init__(self, count: int, find: Callable[[int], NetRow]) -> None:
        self._count, self._find = count, find

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, n: int) -> NetRow: ...
    @overload
    def __getitem__(self, n: slice) -> Sequence[NetRow]: ...
    def __getitem__(self, n: int | slice) -> NetRow | Sequence[NetRow]:
        return self._find(n) if isinstance(n, int) else [self._find(one) for one in range(*n.indices(self._count))]

    def __iter__(self) -> Iterator[NetRow]:
        return map(self._find, range(self._count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """The net effect of a batch."""

    rows: Sequence[NetRow]
    many: tuple[str, ManyRows] | None = None
    """A table and its rows, if there are too many for memory. `rows` then looks them up once they are staged."""
    copies: tuple[NetCopies, ...] = ()
    truncated: tuple[str, ...] = ()
    """Tables that are emptied before anything else."""
    is_repeatable: bool = True
    """Whether the batch may be applied again after parts of it were applied. False if a row's key changes and the events do not
    contain the whole row: after the change of the key, the missing values can no longer be found."""
    letters: tuple[tuple[int, int], ...] = ()
    """Rows that were quarantined and are now among `rows`: (batch, number) under which the target keeps each."""
    unread: tuple[tuple[int, Unread], ...] = ()
    """Unreadable records, each with its position. They are quarantined."""
    has_actions: bool = False
    """Whether foreign key actions make some of the rows. After a partial apply, these actions would find other rows."""
    changes: int
    through: int
    """The position of the batch's last change."""
    place: str | None = None
    """The source's state for resuming after the batch; None if `through` is enough."""


@dataclass(slots=True)
class _Row:
    """The state of a row during the fold."""

    key: Key
    image: Image | None
    origin: Key | None
    """The row's key in the target; None if the batch inserted the row."""
    seq: int
    placed_tx: str | None = None
    """The transaction that put the row under this key."""
    is_partial: bool = False
    """Whether no change inserted the row or showed it whole."""


@dataclass(slots=True)
class _Table:
    schema: TableSchema
    known: frozenset[str]
    """Names of the columns."""
    has_nullable_key: bool
    rows: dict[Key, _Row] = field(default_factory=dict)
    displaced: dict[Key, list[_Row]] = field(default_factory=dict)
    """Rows whose key another row took over before they left it (deferred keys). Empty between transactions."""
    copies: dict[str, list[Any]] = field(default_factory=dict)


def fold(changes: Iterable[Change], tables: Mapping[str, TableSchema]) -> Net:
    """Returns the net effect of whole source transactions.

    Args:
        changes: Changes in source order, without DDL.
        tables: The target's tables, by name.

    Raises:
        InvalidRequest: A change lacks its row's key, or has a column that the target does not have.
    """
    open_tables: dict[str, _Table] = {}
    truncated: dict[str, None] = {}
    count, through, tx = 0, -1, object()
    for change in changes:
        if change.tx is None or change.tx != tx:
            for table in open_tables.values():
                table.displaced.clear()
            tx = change.tx
        count, through = count + 1, change.seq
        if change.op in NO_ROWS:
            continue
        if change.op == "t":
            truncated[change.table] = None
            open_tables.pop(change.table, None)
            continue
        table = open_tables.get(change.table) or open_tables.setdefault(
            change.table, _opened(tables, change.table, change.seq)
        )
        for image in (change.before, change.after):
            if image is not None and not image.keys() <= table.known:
                refuse_columns(table.schema, image, change.seq)
        if table.schema.identity:
            _fold_row(table, change)
        else:
            _fold_copies(table, change)
    every = [(name, row) for name, table in open_tables.items() for row in table.rows.values()]
    rows = tuple(
        NetRow(
            n=n,
            table=name,
            key=row.key,
            image=row.image,
            origin=row.origin if row.image is not None and row.origin != row.key else None,
            seq=row.seq,
            is_partial=row.is_partial and _lacks(row.image, open_tables[name].schema),
        )
        for n, (name, row) in enumerate(every)
    )
    return Net(
        rows=rows,
        copies=tuple(
            NetCopies(table=name, image=image, count=copies, seq=seq)
            for name, table in open_tables.items()
            for image, copies, seq in table.copies.values()
            if copies
        ),
        truncated=tuple(truncated),
        is_repeatable=not any(
            row.origin is not None and _lacks(row.image, open_tables[row.table].schema) for row in rows
        ),
        changes=count,
        through=through,
    )


def _lacks(image: Image | None, schema: TableSchema) -> bool:
    """Returns whether the image lacks a stored column."""
    return image is not None and any(column.name not in image for column in schema.stored)


def _opened(tables: Mapping[str, TableSchema], name: str, seq: int) -> _Table:
    try:
        schema = tables[name]
    except KeyError:
        raise InvalidRequest(
            "a change belongs to a table that the target does not have; nothing was written",
            advice="Make the table in the target, or name its table under `tables`",
            table=name,
            position=seq,
        ) from None
    return _Table(schema, frozenset(column.name for column in schema.columns), bool(schema.nullable_key))


def _fold_row(table: _Table, change: Change) -> None:
    new = table.schema.key_of(change.after)
    old = new if change.before is None else table.schema.key_of(change.before) or new
    image = change.after
    if old is None or (change.op != "d" and image is None):
        raise InvalidRequest(
            "a change does not say which row it changes, or how that row is now; nothing was written",
            advice="The source has to send the key of a row with each change (key columns, or the whole row before)",
            table=change.table,
            key=",".join(table.schema.identity),
            position=change.seq,
        )
    if table.has_nullable_key and (None in old or (new is not None and None in new)):
        raise null_key(table.schema, change.seq)
    if new is None:
        new = old
        image = {**dict(zip(table.schema.identity, new, strict=True)), **(image or {})}
    assert image is not None
    if change.op == "c":
        _put(table, _Row(new, image, None, change.seq, change.tx, change.is_partial))
        return
    place = canonical(old)
    row, is_here = _find(table, old, place, change)
    if change.op == "d":
        if is_here:
            table.rows[place] = _Row(old, None, None, change.seq)
        return
    whole = image if row.image is None else {**row.image, **image}
    is_partial = row.is_partial and change.is_partial
    if is_here and (new == old or canonical(new) == place):
        table.rows[place] = _Row(new, whole, row.origin, change.seq, row.placed_tx, is_partial)
        return
    if is_here:
        table.rows[place] = _Row(old, None, None, change.seq)
    _put(table, _Row(new, whole, row.origin, change.seq, change.tx, is_partial))


def null_key(schema: TableSchema, seq: int) -> InvalidRequest:
    """Returns the error for a row with NULL in its key. Each change of such a row would insert one more row."""
    return InvalidRequest(
        "a row has NULL in a column that tells rows apart; nothing was written",
        advice="Name columns without NULL under `key`, or give the target table a primary key of such columns",
        table=schema.name,
        key=",".join(schema.identity),
        position=seq,
    )


def _put(table: _Table, row: _Row) -> None:
    """Puts a row under its key. The previous row may still leave the key if the source checks keys only at commits."""
    place = canonical(row.key)
    there = table.rows.get(place)
    if row.placed_tx is not None and (there is None or there.image is not None):
        # No known row has the key. Then a row that only the target knows may have it.
        table.displaced.setdefault(place, []).append(there or _Row(row.key, None, row.key, row.seq, is_partial=True))
    table.rows[place] = row


def _find(table: _Table, key: Key, place: Key, change: Change) -> tuple[_Row, bool]:
    """Returns the row that a change means, and whether that row currently has the key."""
    here = table.rows.get(place)
    if here is None:
        return _Row(key, None, key, change.seq, is_partial=True), True
    waiting = table.displaced.get(place)
    if not waiting or here.image is None or agrees(here.image, change.before):
        return here, True
    shows = _shows_another(table, here.image, change.before)
    row = next((row for row in waiting if (shows if row.image is None else agrees(row.image, change.before))), None)
    if row is None:
        return here, True
    waiting.remove(row)
    return row, False


def agrees(image: Image, before: Image | None) -> bool:
    """Returns whether the row may be the one that `before` shows."""
    return before is None or all(image[name] == value for name, value in before.items() if name in image)


def _shows_another(table: _Table, image: Image, before: Image | None) -> bool:
    """Returns whether `before` shows a row that only the target knows; if not, it shows this row's key and stand-in values.

    A source that knows only the key (PostgreSQL's default replica identity) sends NULL for the other columns, and a default or
    an empty value for those that are NOT NULL.
    """
    rest = {name: value for name, value in (before or {}).items() if name not in table.schema.identity}
    if all(value is None or value in EMPTY for value in rest.values()):
        return False
    if any(key.is_deferrable and key.columns == set(table.schema.identity) for key in table.schema.unique_keys):
        return True
    return not any(value is None and image.get(name) is not None for name, value in rest.items())


def _fold_copies(table: _Table, change: Change) -> None:
    for image, step in ((change.before, -1), (change.after, +1)):
        if image is None:
            continue
        missing = [column.name for column in table.schema.stored if column.name not in image]
        if missing:
            raise InvalidRequest(
                "a change of a table without any key does not show the whole row; nothing was written",
                advice="Give the table a key, or let the source send whole rows (REPLICA IDENTITY FULL)",
                table=change.table,
                missing=",".join(missing),
                position=change.seq,
            )
        text = json.dumps(image, sort_keys=True, default=str)
        entry = table.copies.setdefault(text, [image, 0, change.seq])
        entry[1] += step
        entry[2] = change.seq


def canonical(key: Key) -> Key:
    """Returns the key with equal numbers made identical: 1, 1.0 and Decimal("1.00"), but neither True nor "1"."""
    for value in key:
        if type(value) not in PLAIN:
            return tuple(_canonical(value) for value in key)
    return key


def _canonical(value: object) -> object:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, float):
        return Decimal(repr(value)) if math.isfinite(value) else ("float", repr(value))  # 1.1 equals 1.10 exactly
    if isinstance(value, Decimal) and not value.is_finite():
        return ("float", str(float(value)))
    if isinstance(value, dict | list):
        return ("json", json.dumps(value, sort_keys=True, default=str))
    return value
