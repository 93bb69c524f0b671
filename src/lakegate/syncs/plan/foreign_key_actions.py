"""Adds to the changes of a batch the effects of the target's foreign key actions, in source order.

MySQL and MariaDB do not log the effects of ON DELETE and ON UPDATE. A target that applies each change separately repeats these
effects. A fold to net effects does not: a parent that is deleted and inserted again in one batch becomes an update. So the
changes that the actions make are computed before the fold, and folded with the others.

The actions come from the target's catalogue: the source is assumed to have the same ones. Nothing is added to changes from a
source that logs the effects of its actions (PostgreSQL, SQL Server, Oracle, Db2) or has no actions (a Delta table).

Rules for editors: an event overrides the effect of an action on the same row. The target itself finds the rows that refer to a
value, with its own equality.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from lakegate.syncs.plan.change import Change, Image
from lakegate.syncs.plan.net_changes import PLAIN, Key, canonical
from lakegate.syncs.plan.table_schema import ForeignKey, TableSchema

Find = Callable[[TableSchema, Sequence[str], Sequence[Key], Sequence[str]], Sequence[tuple[int, Image]]]
"""(table, columns, values of these columns, wanted columns) → rows of the target that have one of the values: index of the
value, and the wanted columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """The changes of a batch, with the changes that foreign key actions make."""

    changes: Sequence[Change]
    is_repeatable: bool
    """Whether a second run finds the same after parts of the batch were applied."""


def may_act(changes: Sequence[Change], tables: Mapping[str, TableSchema]) -> bool:
    """Returns whether some change deletes a row or changes a value that has a foreign key action."""
    acting = {name: table for name, table in tables.items() if table.acting and table.identity}
    return bool(acting) and any(
        change.table in acting
        and any(_follows(key, change, acting[change.table]) for key in acting[change.table].acting)
        for change in changes
        if change.op in ("u", "d")
    )


def _follows(key: ForeignKey, change: Change, parent: TableSchema) -> bool:
    """Returns whether a foreign key's action may follow a change of its parent."""
    if change.shows_actions:
        return False
    if change.op == "d":
        return key.on_delete is not None
    if key.on_update is None:
        return False
    before, after = change.before or {}, change.after or {}
    # An event without the old key does not change the key.
    return any(
        after[name] != before[name] if name in before else name not in parent.identity
        for name in key.parent_columns
        if name in after
    )


def with_actions(changes: Sequence[Change], tables: Mapping[str, TableSchema], find: Find) -> Acted:
    """Returns the changes, each followed by the effects of foreign key actions.

    Args:
        changes: The changes of one batch.
        tables: The target tables that the changes name, and all tables that actions reach from them.
        find: Queries the target in its state before the batch.
    """
    return _Replay(changes, tables, find).run()


@dataclass(slots=True, eq=False)
class _Row:
    """The state of a row during the replay, as far as foreign keys need it."""

    table: str
    key: Key
    origin: Key | None
    """The row's key in the target; None if the batch inserted the row."""
    values: dict[str, object] = field(default_factory=dict)
    """Known values; the others are as in the target."""
    is_here: bool = True
    is_doubted: bool = False
    """Whether an action would have deleted the row, but a later event changes the row."""
    places: dict[int, Key] = field(default_factory=dict)
    """Number of a foreign key → the value under which the row is listed as a child."""


@dataclass(slots=True)
class _Event:
    """A change of the batch, as an event of the row that has, or gets, a key."""

    place: int
    change: Change
    is_put: bool
    """Whether the event puts a row under this key: a new row, or a row with another key before."""


class _Replay:
    """Replays the changes on the rows that foreign keys with actions connect."""

    def __init__(self, changes: Sequence[Change], tables: Mapping[str, TableSchema], find: Find) -> None:
        self._changes, self._tables, self._find = changes, tables, find
        known = [key for table in tables.values() if table.identity for key in table.acting]
        self._keys = [key for key in known if key.table in tables and tables[key.table].identity]
        self._into: dict[str, list[int]] = {}
        self._from: dict[str, list[int]] = {}
        self._wanted: dict[str, dict[str, None]] = {}
        for number, key in enumerate(self._keys):
            self._into.setdefault(key.parent, []).append(number)
            self._from.setdefault(key.table, []).append(number)
            for name, columns in ((key.parent, key.parent_columns), (key.table, key.columns)):
                wanted = self._wanted.setdefault(name, dict.fromkeys(tables[name].identity))
                wanted.update(dict.fromkeys(columns))
        self._rows: dict[tuple[str, Key], _Row] = {}
        self._origins: dict[tuple[str, Key], _Row] = {}
        self._children: list[dict[Key, dict[int, _Row]]] = [{} for _ in self._keys]
        self._asked: list[set[Key]] = [set() for _ in self._keys]
        self._later: dict[tuple[str, Key], deque[_Event]] = {}
        self._said: list[Change] = []
        self._derived = 0
        self._acted: set[tuple[int, Key]] = set()
        self._is_put_again = False

    def run(self) -> Acted:
        """Replays all changes."""
        for place, change in enumerate(self._changes):
            self._look_ahead(place, change)
        self._ask_ahead()
        for place, change in enumerate(self._changes):
            self._said.append(change)
            if change.table in self._wanted and change.op in ("c", "u", "d"):
                self._replay(place, change)
        return Acted(changes=self._said, is_repeatable=not (self._derived or self._is_put_again))

    def _keys_of(self, change: Change) -> tuple[Key | None, Key | None]:
        """Returns the row's keys before and after the change; None if there is no such row or the change lacks the key."""
        schema = self._tables[change.table]
        new = None if change.op == "d" else schema.key_of(change.after)
        old = None if change.op == "c" else schema.key_of(change.before) or schema.key_of(change.after)
        return old, new or (old if change.op == "u" else None)

    def _look_ahead(self, place: int, change: Change) -> None:
        if change.table not in self._wanted or change.op not in ("c", "u", "d"):
            return
        old, new = self._keys_of(change)
        if old is not None:
            self._later.setdefault((change.table, _plain(old)), deque()).append(_Event(place, change, False))
        if new is not None and (old is None or _plain(new) != _plain(old)):
            self._later.setdefault((change.table, _plain(new)), deque()).append(_Event(place, change, True))

    def _ask_ahead(self) -> None:
        """Queries the target in bulk for everything that the changes will reach, so that few single queries remain."""
        asked: dict[int, dict[Key, Key]] = {}
        for table, numbers in self._into.items():
            schema, unknown = self._tables[table], dict[Key, Key]()
            followed = [
                (number, old, {**(change.before or {}), **dict(zip(schema.identity, old, strict=True))})
                for change in self._changes
                if change.table == table and change.op in ("u", "d")
                for number in numbers
                if _follows(self._keys[number], change, schema) and (old := self._keys_of(change)[0]) is not None
            ]
            for number, old, image in followed:
                if _values(image, self._keys[number].parent_columns) is None:
                    unknown[_plain(old)] = old
            there = self._load(schema, list(unknown.values()))
            for number, old, image in followed:
                value = _values({**there.get(_plain(old), {}), **image}, self._keys[number].parent_columns)
                if value is not None and None not in value:
                    asked.setdefault(number, {})[_plain(value)] = value
        while asked:
            following: dict[int, dict[Key, Key]] = {}
            for number, values in asked.items():
                key = self._keys[number]
                for row in self._ask(number, list(values.values())):
                    for other in self._into.get(key.table, ()):
                        value = _values(row.values, self._keys[other].parent_columns)
                        if value is not None and None not in value and _plain(value) not in self._asked[other]:
                            following.setdefault(other, {})[_plain(value)] = value
            asked = following

    def _load(self, schema: TableSchema, keys: Sequence[Key]) -> Mapping[Key, Image]:
        """Loads rows of the target by their keys, with the columns that foreign keys need."""
        wanted = list(self._wanted[schema.name])
        found = dict[Key, Image]()
        for place, image in self._find(schema, schema.identity, keys, wanted) if keys else ():
            row = self._row(schema.name, keys[place])
            row.values = {**{name: _said(image[name]) for name in wanted}, **row.values}
            found[_plain(keys[place])] = row.values
        return found

    def _replay(self, place: int, change: Change) -> None:
        table = change.table
        old, new = self._keys_of(change)
        for key in (old, new):
            events = None if key is None else self._later.get((table, _plain(key)))
            while events and events[0].place <= place:
                events.popleft()
        if old is None:
            if new is not None:
                row = _Row(table, new, None)
                self._origins.setdefault((table, _plain(new)), row)
                self._write(row, new, change.after or {}, change)
            return
        row = self._row(table, old)
        schema = self._tables[table]
        before = {
            number: self._parent_values(row, number, change.before)
            for number in self._into.get(table, ())
            if _follows(self._keys[number], change, schema)
        }
        if change.op == "d":
            self._remove(row)
            self._act([(number, value, None) for number, value in before.items()], change)
        elif new is not None:
            self._write(row, new, change.after or {}, change)
            after = {number: _values(row.values, self._keys[number].parent_columns) for number in before}
            self._act([(number, value, after[number] or value) for number, value in before.items()], change)

    def _row(self, table: str, key: Key) -> _Row:
        """Returns the row under a key; a row of the target if the batch has had none there."""
        place = (table, _plain(key))
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = self._origins[place] = _Row(table, key, key)
            row.values.update(zip(self._tables[table].identity, key, strict=True))
        return row

    def _write(self, row: _Row, key: Key, image: Image, cause: Change) -> None:
        """Writes the image to the row, under this key."""
        self._drop(row)
        there = self._rows.get((row.table, _plain(key)))
        if there is not None and there is not row and there.is_here:
            self._remove(there)
            if there.is_doubted:
                # Another row takes the key. So the doubted row was deleted, and later events are about the other row.
                self._said.append(self._gone(there, cause))
                self._derived += 1
                self._act([(n, self._parent_values(there, n), None) for n in self._into.get(row.table, ())], cause)
        row.key, row.is_here, row.is_doubted = key, True, False
        row.values.update({name: image[name] for name in self._wanted[row.table] if name in image})
        row.values.update(zip(self._tables[row.table].identity, key, strict=True))
        self._rows[row.table, _plain(key)] = row
        for number in self._from.get(row.table, ()):
            self._place(row, number)
        for number in self._into.get(row.table, ()):
            value = _values(row.values, self._keys[number].parent_columns)
            self._is_put_again |= value is not None and (number, _plain(value)) in self._acted

    def _remove(self, row: _Row) -> None:
        self._drop(row)
        row.is_here = False

    def _drop(self, row: _Row) -> None:
        """Removes the row from all lists of children."""
        for number, value in row.places.items():
            self._children[number].get(value, {}).pop(id(row), None)
        row.places.clear()

    def _place(self, row: _Row, number: int, value: Key | None = None) -> None:
        """Adds the row to the children of the value that it refers to."""
        value = value or _values(row.values, self._keys[number].columns)
        if value is not None and None not in value and number not in row.places:
            row.places[number] = _plain(value)
            self._children[number].setdefault(_plain(value), {})[id(row)] = row

    def _parent_values(self, row: _Row, number: int, before: Image | None = None) -> Key | None:
        """Returns the value that children of the row refer to; None if there is none or it is unknown."""
        columns = self._keys[number].parent_columns
        value = _values(row.values, columns)
        if value is None and row.origin is not None:
            schema, wanted = self._tables[row.table], list(self._wanted[row.table])
            for _, image in self._find(schema, schema.identity, [row.origin], wanted):
                row.values = {**{name: _said(image[name]) for name in wanted}, **row.values}
            value = _values(row.values, columns)
        return _values(before, columns) if value is None and before is not None else value

    def _ask(self, number: int, values: Sequence[Key]) -> Sequence[_Row]:
        """Returns the rows of the target that refer to one of the values."""
        key = self._keys[number]
        values = [value for value in values if _plain(value) not in self._asked[number]]
        if not values:
            return ()
        self._asked[number].update(map(_plain, values))
        schema, wanted, found = self._tables[key.table], list(self._wanted[key.table]), list[_Row]()
        for place, image in self._find(schema, key.columns, values, wanted):
            own = tuple(_said(image[name]) for name in schema.identity)
            row = self._origins.get((key.table, _plain(own)))
            if row is None:
                row = self._origins[key.table, _plain(own)] = _Row(key.table, own, own)
                self._rows.setdefault((key.table, _plain(own)), row)
            if row.origin is None or not row.is_here:
                continue
            unknown = {name for name in key.columns if name not in row.values}
            row.values = {**{name: _said(image[name]) for name in wanted}, **row.values}
            for other in self._from[key.table]:
                # By the target's equality, the row refers to exactly this value.
                self._place(row, other, values[place] if other == number and unknown else None)
            found.append(row)
        return found

    def _act(self, actions: Sequence[tuple[int, Key | None, Key | None]], cause: Change) -> None:
        """Applies foreign key actions: (key number, parent's values before, after; None after if the parent is deleted)."""
        waiting = deque(actions)
        while waiting:
            number, old, new = waiting.popleft()
            key = self._keys[number]
            if old is None or None in old or (new is not None and _plain(old) == _plain(new)):
                continue
            if not (key.on_delete if new is None else key.on_update):
                continue
            self._acted.add((number, _plain(old)))
            self._ask(number, [old])
            sets = key.sets(new)
            for row in list(self._children[number].get(_plain(old), {}).values()):
                waiting.extend(self._follow(row, sets, cause))

    def _follow(self, row: _Row, sets: Image | None, cause: Change) -> Iterator[tuple[int, Key | None, Key | None]]:
        """Applies an action to a child: deletes it or writes to it. Yields the actions that follow."""
        identity, into = self._tables[row.table].identity, self._into.get(row.table, ())
        moves = sets is not None and any(name in identity for name in sets)
        if self._is_said(row, sets, moves):
            row.is_doubted |= sets is None
            return
        self._derived += 1
        before = [(number, self._parent_values(row, number)) for number in into]
        if sets is None:
            self._said.append(self._gone(row, cause))
            self._remove(row)
            yield from ((number, value, None) for number, value in before)
            return
        old = dict(zip(identity, row.key, strict=True))
        image = {**old, **sets}
        self._said.append(
            Change(seq=cause.seq, tx=cause.tx, table=row.table, op="u", before=old, after=image, is_partial=True)
        )
        self._write(row, tuple(image[name] for name in identity), image, cause)
        for number, value in before:
            after = _values(row.values, self._keys[number].parent_columns)
            if after is not None:
                yield number, value, after

    def _is_said(self, row: _Row, sets: Image | None, moves: bool) -> bool:
        """Returns whether a later event decides the row's state."""
        events = self._later.get((row.table, _plain(row.key)))
        if not events or events[0].is_put:
            return False
        event = events[0].change
        return event.op == "d" or sets is None or moves or set(sets) <= set(event.after or {})

    def _gone(self, row: _Row, cause: Change) -> Change:
        key = dict(zip(self._tables[row.table].identity, row.key, strict=True))
        return Change(seq=cause.seq, tx=cause.tx, table=row.table, op="d", before=key)


def _values(image: Image, columns: Sequence[str]) -> Key | None:
    """Returns the values of columns; None if the image lacks one."""
    return tuple([image[name] for name in columns]) if all(name in image for name in columns) else None


def _plain(key: Key) -> Key:
    """Returns the key in a form that is equal for events and for the driver's values."""
    key = canonical(key)
    return key if all(type(value) in PLAIN for value in key) else tuple(map(_said, key))


def _said(value: object) -> object:
    """Returns a driver's value as an event represents it: dates, times and UUIDs as text."""
    return value if value is None or isinstance(value, int | float | str | bytes | Decimal | tuple) else str(value)
