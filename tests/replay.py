"""The oracle: appends, mutations and erasures in plain Python, one record and one request at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A request to a mutate stream; `set` None deletes."""

    key: Mapping[str, object]
    set: Mapping[str, object] | None


@dataclass(kw_only=True)
class Mutations:
    """A mutate stream without `sequence_by`."""

    is_standing: bool
    moves_rows: bool = False
    rules: list[Change] = field(default_factory=list)
    waiting: list[Change] = field(default_factory=list)


@dataclass(kw_only=True)
class Replay:
    """A table. Streams of mutations meet late rows in the order of the mapping."""

    person: tuple[str, ...] = ("person",)
    unique: tuple[str, ...] = ()
    mutations: Mapping[str, Mutations] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    erased: set[tuple[object, ...]] = field(default_factory=set)

    def append(self, rows: Sequence[Row]) -> None:
        """Rows come, in order."""
        known = {tuple(row[name] for name in self.unique) for row in self.rows}
        for given in rows:
            late = [dict(given)]
            for stream in self.mutations.values():
                if stream.is_standing:
                    self._meet(late, stream)
            for row in late:
                unique = tuple(row[name] for name in self.unique)
                if not self._is_erased(row) and not (self.unique and unique in known):
                    known.add(unique)
                    self.rows.append(row)

    def mutate(self, name: str, changes: Sequence[Change]) -> None:
        """Requests come, in order."""
        stream = self.mutations[name]
        for change in changes:
            if None in change.key.values():
                continue
            if stream.is_standing:
                stream.rules.append(change)
                self._apply(self.rows, change)
                continue
            if not stream.moves_rows:
                stream.waiting = [w for w in stream.waiting if w.key != change.key or not self._apply(self.rows, w)]
            if not self._apply(self.rows, change):
                stream.waiting.append(change)

    def sweep(self, name: str) -> None:
        """Tries waiting requests again."""
        stream = self.mutations[name]
        stream.waiting = [change for change in stream.waiting if not self._apply(self.rows, change)]

    def erase(self, person: Sequence[object], *, lift: bool = False) -> None:
        """Applies an erasure, or its end."""
        if lift:
            self.erased.discard(tuple(person))
            return
        self.erased.add(tuple(person))
        self.rows = [row for row in self.rows if not self._is_erased(row)]
        for stream in self.mutations.values():
            stream.waiting = [change for change in stream.waiting if not self._names(change, person)]

    def _names(self, change: Change, person: Sequence[object]) -> bool:
        said = [change.key, change.set or {}]
        return any([part.get(name) for name in self.person] == list(person) for part in said)

    def _is_erased(self, row: Row) -> bool:
        return tuple(row[name] for name in self.person) in self.erased

    def _meet(self, late: list[Row], stream: Mutations) -> None:
        """A late row: as if it had been there from the start where keys move, else what was said last of its key."""
        if stream.moves_rows:
            for rule in stream.rules:
                self._apply(late, rule)
        else:
            said = [rule for rule in stream.rules if late and _has(late[0], rule.key)]
            for rule in said[-1:]:
                self._apply(late, rule)

    def _apply(self, rows: list[Row], change: Change) -> bool:
        hit = [row for row in rows if _has(row, change.key)]
        for row in hit:
            row.update(change.set or {})
        gone = [id(row) for row in hit if change.set is None or self._is_erased(row)]
        rows[:] = [row for row in rows if id(row) not in gone]
        return bool(hit)


def _has(row: Row, key: Mapping[str, object]) -> bool:
    return all(row[name] == value and value is not None for name, value in key.items())
