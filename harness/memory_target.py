"""A small database that is easy to verify: rows in a dict, every constraint checked at every row, transactions by copying.

It implements `TargetDatabase` for the exploration of the protocol that applies a batch, and is the oracle of the other targets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakegate.errors import CommitInDoubt, Fenced
from lakegate.syncs.plan.apply_protocol import ALL, DEAD, Applied, DeadRow, Refusal, SlotOutcome, SyncProgress, Violated
from lakegate.syncs.plan.change import Change, Image
from lakegate.syncs.plan.conflict_graph import Assignment, Clash, Edge, Found
from lakegate.syncs.plan.dead_letters import KeptRow
from lakegate.syncs.plan.net_changes import Net
from lakegate.syncs.plan.table_schema import Column, TableSchema, UniqueKey

Row = dict[str, Any]
Key = tuple[Any, ...]


class Violation(Exception):
    """A row would break a constraint."""


def table(
    name: str, identity: Sequence[str], unique: Sequence[Sequence[str]], others: Sequence[str] = ()
) -> TableSchema:
    """Makes a table with a primary key and unique keys; NULLs are distinct."""
    columns = dict.fromkeys([*identity, *(column for key in unique for column in key), *others])
    keys = [UniqueKey(name="primary", parts=tuple(identity), columns=frozenset(identity), is_primary=True)]
    keys += [UniqueKey(name="_".join(key), parts=tuple(key), columns=frozenset(key)) for key in unique]
    return TableSchema(
        name=name,
        columns=tuple(Column(name=column, type="any", is_nullable=column not in identity) for column in columns),
        identity=tuple(identity),
        unique_keys=tuple(keys),
    )


@dataclass(slots=True)
class Storage:
    """The state that survives a crash."""

    schemas: dict[str, TableSchema]
    rows: dict[str, dict[Key, Row]] = field(default_factory=dict)
    progress: SyncProgress = field(default_factory=lambda: SyncProgress(epoch=0, last_batch=0, position=-1))
    slots: set[int] = field(default_factory=set)
    dead: list[DeadRow] = field(default_factory=list)

    def insert(self, name: str, row: Row) -> None:
        """Inserts a row. Raises `Violation`."""
        schema = self.schemas[name]
        key = schema.key_of(row)
        assert key is not None
        there = self.rows.setdefault(name, {})
        for unique in schema.unique_keys:
            value = value_of(unique, row)
            if value is not None and any(value_of(unique, other) == value for other in there.values()):
                raise Violation(f"{unique.name} {value} is taken")
        there[key] = row

    def update(self, name: str, key: Key, new: Mapping[str, Any]) -> None:
        """Updates an existing row. Raises `Violation`, and then the row is unchanged."""
        old = self.rows[name].pop(key)
        try:
            self.insert(name, {**old, **new})
        except Violation:
            self.rows[name][key] = old
            raise

    def delete(self, name: str, key: Key) -> None:
        """Deletes a row, if it exists."""
        self.rows.setdefault(name, {}).pop(key, None)


def value_of(unique: UniqueKey, row: Row) -> Key | None:
    """Returns the row's value of a unique key; None if a part is NULL."""
    value = tuple(row.get(part) for part in unique.parts)
    return None if None in value else value


@dataclass(slots=True)
class _Staged:
    net: Net
    slot: dict[int, int]
    vacate: dict[int, int] = field(default_factory=dict)


class MemoryTarget:
    """A writer on a storage."""

    writers_max: int | None = None
    slot_rows_max: int | None = None

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._epoch = self._last_batch = 0
        self._staged: _Staged | None = None

    def open_stream(self, stream: str, *, epoch: int | None = None) -> SyncProgress:
        stored = self.storage.progress
        if epoch is not None and epoch < stored.epoch:
            raise Fenced(stream=stream)
        self._epoch = stored.epoch + 1 if epoch is None else epoch
        self.storage.progress = replace(stored, epoch=self._epoch)
        self._last_batch = stored.last_batch
        return self.storage.progress

    def tables(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        return {name: self.storage.schemas[name] for name in names if name in self.storage.schemas}

    def related(self, names: Sequence[str]) -> Mapping[str, TableSchema]:
        return self.storage.schemas

    def find(
        self, table: TableSchema, columns: Sequence[str], values: Sequence[Key], wanted: Sequence[str]
    ) -> Sequence[tuple[int, Image]]:
        return [
            (n, {name: row.get(name) for name in wanted})
            for n, value in enumerate(values)
            for row in self.storage.rows.get(table.name, {}).values()
            if tuple(row.get(name) for name in columns) == value
        ]

    def forget_tables(self) -> None:
        """Does nothing: definitions are never cached."""

    def stage(self, net: Net, slots: int) -> tuple[Refusal, ...]:
        self._fence()
        self._staged = _Staged(net, {row.n: row.n % slots for row in net.rows})
        absent = [
            row
            for row in net.rows
            if row.is_partial and (row.origin or row.key) not in self.storage.rows.get(row.table, {})
        ]
        self._staged.slot.update((row.n, DEAD) for row in absent)
        return tuple(Refusal(row=row.n, reason="the target does not have the row") for row in absent)

    def look(self, net: Net, *, duplicates: bool) -> Found:
        self._fence()
        edges: list[Edge] = []
        clashes: list[Clash] = []
        for n, number, holder in self._holders(net):
            row = net.rows[n]
            unique = self.storage.schemas[row.table].unique_keys[number]
            other = next((one for one in net.rows if one.table == row.table and one.key == holder), None)
            keeps = other is not None and other.image is not None and (
                value_of(unique, self._final(other.n)) == value_of(unique, self._final(n))
            )  # fmt: skip
            if other is not None and not keeps and self._slot(other.n) != DEAD:
                edges.append(Edge(other.n, n, number))
            else:
                clashes.append(
                    Clash(row=n, table=row.table, key=unique.name, other=other.n if other else None, holder=str(holder))
                )
        return Found(edges=tuple(edges), clashes=tuple(clashes))

    def assign(self, assignment: Assignment) -> None:
        self._fence()
        staged = self._batch
        staged.slot.update(assignment.slot_of)
        staged.vacate.update(assignment.vacate)

    def begin(self, net: Net) -> None:
        self._fence()
        self.storage.slots = set()
        self.storage.progress = replace(self.storage.progress, pending=net.through, pending_place=net.place)

    def apply(
        self, net: Net, slot: int, *, finish: bool = False, dead: Sequence[DeadRow] = (), is_trial: bool = False
    ) -> SlotOutcome:
        self._fence()
        trial = copy.deepcopy(self.storage)
        mine = [row for row in net.rows if (self._slot(row.n) >= 0 if slot == ALL else self._slot(row.n) == slot)]
        finals = {row.n: self._final(row.n) for row in mine if row.image is not None}
        try:
            if slot == ALL:
                for name in net.truncated:
                    trial.rows[name] = {}
            for row in mine:
                if row.image is None or self._batch.vacate.get(row.n):
                    trial.delete(row.table, row.key)
            for row in mine:
                if row.image is not None and row.key in trial.rows.get(row.table, {}):
                    trial.update(row.table, row.key, finals[row.n])
                elif row.image is not None:
                    trial.insert(row.table, finals[row.n])
        except Violation as error:
            return Violated(reason=str(error))
        if is_trial:
            return Applied()
        self.storage.rows = trial.rows
        if slot >= 0:
            self.storage.slots.add(slot)
        if finish:
            self._finish(net, dead)
        return Applied()

    def finish(self, net: Net, slots: int, dead: Sequence[DeadRow]) -> None:
        self._fence()
        if not self.storage.slots >= set(range(slots)):
            raise CommitInDoubt("a slot of the batch is missing")
        self._finish(net, dead)

    def letters(self) -> Sequence[KeptRow]:
        return ()  # it reports which rows are quarantined, and does not retry them

    def add_columns(self, table: str, values: Mapping[str, object]) -> None:
        raise NotImplementedError("the memory target adds no column")

    def staged_key(self, table: str, n: int) -> Key:
        return self._batch.net.rows[n].key

    def define(self, change: Change) -> None:
        raise NotImplementedError("the memory target defines no table")

    def close(self) -> None:
        """Does nothing: the target has no connection."""

    @property
    def _batch(self) -> _Staged:
        assert self._staged is not None
        return self._staged

    def _slot(self, n: int) -> int:
        return self._batch.slot[n]

    def _finish(self, net: Net, dead: Sequence[DeadRow]) -> None:
        self._last_batch += 1
        self.storage.dead.extend(dead)
        self.storage.progress = SyncProgress(
            epoch=self._epoch, last_batch=self._last_batch, position=net.through, place=net.place
        )

    def _fence(self) -> None:
        if (self.storage.progress.epoch, self.storage.progress.last_batch) != (self._epoch, self._last_batch):
            raise Fenced("a later writer has begun on this stream; nothing was written")

    def _final(self, n: int) -> Row:
        """Returns the final image of a row, completed by the columns that the target has."""
        row = self._batch.net.rows[n]
        there = self.storage.rows.get(row.table, {}).get(row.origin or row.key, {})
        return {**there, **(row.image or {})}

    def _holders(self, net: Net) -> Iterator[tuple[int, int, Key]]:
        for row in net.rows:
            if row.image is None or self._slot(row.n) < 0 or row.table in net.truncated:
                continue
            final = self._final(row.n)
            for number, unique in enumerate(self.storage.schemas[row.table].unique_keys):
                value = value_of(unique, final)
                for key, other in self.storage.rows.get(row.table, {}).items():
                    if value is not None and key != row.key and value_of(unique, other) == value:
                        yield row.n, number, key
