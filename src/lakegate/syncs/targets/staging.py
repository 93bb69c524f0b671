"""Staged rows: next to each target table, a table with the same columns, one row for each row of the batch, and marks.

Values are compared only in the database, between staged rows and target rows. So the target's own rules of equality hold: its
types, collations, expressions and predicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakegate.syncs.plan.change import ManyRows
from lakegate.syncs.plan.conflict_graph import Clash, Edge
from lakegate.syncs.plan.net_changes import NetRow
from lakegate.syncs.plan.table_schema import ForeignKey, TableSchema
from lakegate.syncs.plan.values import BareNumber
from lakegate.syncs.targets.dialect import Dialect

GONE, PUT = 0, 1
VOID = 2
"""A deleted row, while another staged row is the same row for the target. The image of that row counts."""
MARKS = ("lg_n", "lg_op", "lg_mask")
INT = frozenset({int, BareNumber})
EXACT = frozenset({"integer", "bigint", "smallint", "int", "tinyint", "mediumint", "int2", "int4", "int8"})
"""Kinds of columns in which different whole numbers are also different for the target."""


@dataclass(slots=True)
class StagedTable:
    """A table of a batch."""

    schema: TableSchema
    table: str
    """Quoted name of the target table."""
    stage: str
    """Quoted name of the staging table."""
    rows: list[NetRow] = field(default_factory=list)
    """The rows that this process holds in memory."""
    count: int = 0
    """The number of staged rows, including refused rows."""
    refused: int = 0
    """The number of these rows that are not in the staging table."""
    masks: dict[frozenset[str], int] = field(default_factory=dict)
    """Set of columns that an image contains → number of the set, from 1."""
    shapes: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Columns of an image, in order → number of their set. A cache for `masks`."""
    gone: int = 0
    put: int = 0
    moved: int = 0
    vacated: int = 0
    """Bits of the unique keys whose value some row must release."""
    has_partial: bool = False
    """Whether some row is partial at the end of the batch, so that only the target can complete it."""
    is_emptied: bool = False
    """The batch empties the target table first."""
    has_numbers_only: bool = True
    """Whether all values of all keys are whole numbers."""

    def add(self, row: NetRow) -> None:
        """Adds a row."""
        self.rows.append(row)
        self.count += 1
        if self.has_numbers_only and not INT.issuperset(map(type, row.key)):
            self.has_numbers_only = False
        if row.image is None:
            self.gone += 1
            return
        self.put += 1
        self.moved += row.origin is not None
        self.has_partial |= row.is_partial
        shape = tuple(row.image)
        if shape not in self.shapes:
            said = frozenset(column.name for column in self.schema.stored if column.name in row.image)
            self.shapes[shape] = self.masks.setdefault(said, len(self.masks) + 1)

    def add_many(self, many: ManyRows) -> None:
        """Adds rows that this process does not hold in memory."""
        self.count, self.gone, self.put = many.gone + many.put, many.gone, many.put
        self.masks[frozenset(column.name for column in self.schema.stored if column.name in many.columns)] = 1
        self.has_numbers_only = False

    @property
    def may_be_filled(self) -> bool:
        """Returns whether a row may have to be completed from the target before it releases a key: some image is partial."""
        return bool(self.vacated or self.moved or self.numbered) and any(
            len(said) < len(self.schema.stored) for said in self.masks
        )

    @property
    def numbered(self) -> tuple[str, ...]:
        """Returns the columns that no UPDATE may set but whose value may change."""
        found = (column.name for column in self.schema.columns if column.is_numbered)
        return tuple(name for name in found if name not in self.schema.identity)

    @property
    def is_exact(self) -> bool:
        """Returns whether keys that differ in this process also differ in the target."""
        kinds = {column.name: column.kind for column in self.schema.columns}
        return self.has_numbers_only and all(kinds[name] in EXACT for name in self.schema.identity)

    def stage_columns(self, slots: int) -> list[str]:
        """Returns the columns that staging writes. The other columns get their default."""
        marks = [*MARKS, "lg_slot"] if slots > 1 else list(MARKS)
        origin = [f"lg_o{i}" for i in range(len(self.schema.identity))] if self.moved else []
        return [*marks, *origin, *(column.name for column in self.schema.stored)]

    def stage_rows(self, rows: Sequence[NetRow], slots: int) -> Iterator[Sequence[object]]:
        """Yields the rows to stage: values in the order of `stage_columns`."""
        names = tuple(column.name for column in self.schema.stored)
        blank: list[object] = [None] * len(self.schema.identity)
        for n, _, key, image, origin, *_ in rows:
            mark = (n % slots,) if slots > 1 else ()
            place = () if not self.moved else blank if origin is None else origin
            if image is None:
                values = dict(zip(self.schema.identity, key, strict=True))
                yield (n, GONE, 0, *mark, *place, *map(values.get, names))
                continue
            shape = tuple(image)
            values_of = image.values() if shape == names else map(image.get, names)
            yield (n, PUT, self.shapes[shape], *mark, *place, *values_of)


class Questions:
    """The SELECTs of a plan, for one table each, and the UPDATEs that complete staged rows before them."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def match(self, table: StagedTable, left: str, right: str) -> str:
        """Returns the condition that the rows of two aliases have the same key."""
        name = self._dialect.name
        return " AND ".join(f"{left}.{name(k)} = {right}.{name(k)}" for k in table.schema.identity)

    def origin_match(self, table: StagedTable) -> str:
        """Returns the condition that row `t` is the origin of staged row `s`: the same row before its key changed."""
        name = self._dialect.name
        return " AND ".join(f"t.{name(k)} = s.lg_o{i}" for i, k in enumerate(table.schema.identity))

    def void(self, table: StagedTable) -> str:
        """Marks a deleted row as void if another staged row has an equal key by the target's equality."""
        return self._dialect.change(
            (table.stage, "s"), (table.stage, "t"), self.match(table, "s", "t"), [("lg_op", str(VOID))],
            f"s.lg_op = {GONE} AND t.lg_op = {PUT}",
        )  # fmt: skip

    def absent(self, table: StagedTable) -> str:
        """Selects staged partial rows for which the target has no row to complete them from."""
        columns = len(table.schema.stored)
        masks = ", ".join(str(mask) for said, mask in table.masks.items() if len(said) < columns)
        nothing = f"NOT EXISTS (SELECT 1 FROM {table.table} t WHERE {self.match(table, 't', 's')})"
        if table.moved:
            elsewhere = f"NOT EXISTS (SELECT 1 FROM {table.table} t WHERE {self.origin_match(table)})"
            nothing = f"(s.lg_o0 IS NULL AND {nothing} OR s.lg_o0 IS NOT NULL AND {elsewhere})"
        return f"SELECT s.lg_n FROM {table.stage} s WHERE s.lg_op = {PUT} AND s.lg_mask IN ({masks}) AND {nothing}"

    def others_gone(self, table: StagedTable) -> str:
        """Stages a deletion for each row of the target that is not in the batch."""
        name = self._dialect.name
        keys = ", ".join(map(name, table.schema.identity))
        found = ", ".join(f"t.{name(k)}" for k in table.schema.identity)
        return (
            f"INSERT INTO {table.stage} (lg_n, lg_op, lg_mask, {keys}) "
            f"SELECT {table.count} - 1 + ROW_NUMBER() OVER (ORDER BY {found}), {GONE}, 0, {found} FROM {table.table} t "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table.stage} s WHERE {self.match(table, 't', 's')})"
        )

    def completions(self, table: StagedTable, referenced: frozenset[str]) -> Iterator[str]:
        """Yields UPDATEs that complete staged rows with the values that a plan needs and the events did not contain.

        Args:
            table: The table.
            referenced: Columns that foreign keys of other tables refer to.
        """
        name, stored = self._dialect.name, [column.name for column in table.schema.stored]
        wanted = {one for key in table.schema.unique_keys for one in key.columns} | referenced
        for said, mask in table.masks.items():
            missing = [one for one in stored if one not in said]
            if missing and table.moved:
                yield self._dialect.change(
                    (table.stage, "s"), (table.table, "t"), self.origin_match(table),
                    [*((one, f"t.{name(one)}") for one in missing), ("lg_full", "1")],
                    f"s.lg_mask = {mask} AND s.lg_o0 IS NOT NULL",
                )  # fmt: skip
            needed = [one for one in missing if one in wanted]
            if needed:
                yield self._dialect.change(
                    (table.stage, "s"), (table.table, "t"), self.match(table, "s", "t"),
                    [(one, f"t.{name(one)}") for one in needed],
                    f"s.lg_mask = {mask} AND s.lg_full = 0",
                )  # fmt: skip
        needed = [one for one in stored if one in referenced and one not in table.schema.identity]
        if needed and table.gone:
            yield self._dialect.change(
                (table.stage, "s"), (table.table, "t"), self.match(table, "s", "t"),
                [(one, f"t.{name(one)}") for one in needed], f"s.lg_op = {GONE}",
            )  # fmt: skip

    def holders(self, table: StagedTable, number: int) -> Iterator[str]:
        """Selects the target rows that hold a value of unique key `number` with which a staged row ends.

        Rows of the answer: acquirer, holder's row in the batch or NULL, whether the holder keeps the value, its slot, its key.
        """
        key, name, same = table.schema.unique_keys[number], self._dialect.name, self._dialect.same
        identity = [name(k) for k in table.schema.identity]
        parts = [f"{part} AS lg_p{i}" for i, part in enumerate(key.parts)]
        keys = [f"{k} AS lg_k{i}" for i, k in enumerate(identity)]
        inside = f"({key.predicate})" if key.predicate else "1 = 1"
        fields = ", ".join([*keys, *parts])
        own = " AND ".join(f"t.lg_k{i} = n.lg_k{i}" for i in range(len(identity)))
        row = " AND ".join(f"r.lg_k{i} = t.lg_k{i}" for i in range(len(identity)))

        def equal(left: str, right: str, *, nulls: bool) -> str:
            operators = key.operators or ("=",) * len(key.parts)
            return " AND ".join(
                same(f"{left}.lg_p{i}", f"{right}.lg_p{i}") if nulls else f"{left}.lg_p{i} {op} {right}.lg_p{i}"
                for i, op in enumerate(operators)
            )

        def query(*, nulls: bool) -> str:
            some_null = " OR ".join(f"n.lg_p{i} IS NULL" for i in range(len(key.parts)))
            return (
                f"SELECT n.lg_n, r.lg_n, CASE WHEN r.lg_op = {PUT} AND r.lg_in AND {equal('r', 'n', nulls=nulls)} "
                f"THEN 1 ELSE 0 END, r.lg_slot, {', '.join(f't.lg_k{i}' for i in range(len(identity)))} "
                f"FROM (SELECT lg_n, {fields} FROM {table.stage} "
                f"WHERE lg_op = {PUT} AND lg_slot >= 0 AND {inside}) n "
                f"JOIN (SELECT {fields} FROM {table.table} WHERE {inside}) t ON {equal('t', 'n', nulls=nulls)} "
                f"LEFT JOIN (SELECT lg_n, lg_op, lg_slot, {fields}, {inside} AS lg_in FROM {table.stage} "
                f"WHERE lg_op < {VOID}) r ON {row} "
                f"WHERE NOT ({own})" + (f" AND ({some_null})" if nulls else "")
            )

        yield query(nulls=False)
        if key.nulls_equal:
            yield query(nulls=True)  # a separate query: a join that treats NULLs as equal uses no index

    def held(self, table: StagedTable, rows_max: int | None) -> str:
        """Counts the rows of the staging table, at most up to `rows_max` if it is given."""
        rows = table.stage if rows_max is None else f"(SELECT lg_n FROM {table.stage} LIMIT {int(rows_max)}) s"
        return f"SELECT count(*) FROM {rows}"

    def duplicates(self, table: StagedTable, number: int) -> str:
        """Selects pairs of staged rows with the same value of unique key `number`: row, other row, the other row's key."""
        key, same = table.schema.unique_keys[number], self._dialect.same
        parts = ", ".join(f"{part} AS lg_p{i}" for i, part in enumerate(key.parts))
        keys = ", ".join(f"{self._dialect.name(k)} AS lg_k{i}" for i, k in enumerate(table.schema.identity))
        inside = f"({key.predicate})" if key.predicate else "1 = 1"
        rows = f"(SELECT lg_n, {keys}, {parts} FROM {table.stage} WHERE lg_op = {PUT} AND lg_slot >= 0 AND {inside})"
        operators = key.operators or ("=",) * len(key.parts)
        equal = " AND ".join(
            same(f"a.lg_p{i}", f"b.lg_p{i}") if key.nulls_equal else f"a.lg_p{i} {op} b.lg_p{i}"
            for i, op in enumerate(operators)
        )
        others = ", ".join(f"b.lg_k{i}" for i in range(len(table.schema.identity)))
        return f"SELECT a.lg_n, b.lg_n, {others} FROM {rows} a JOIN {rows} b ON {equal} WHERE a.lg_n <> b.lg_n"

    def ties(self, child: StagedTable, parent: StagedTable, key: ForeignKey) -> Iterator[str]:
        """Selects rows of the batch that a foreign key connects, if the parent is inserted, deleted, or its key changes."""
        name = self._dialect.name
        stays = " AND ".join(
            [self.match(parent, "t", "p"), *(f"t.{name(one)} = p.{name(one)}" for one in key.parent_columns)]
        )
        moves = f"p.lg_op < {VOID} AND (p.lg_op = {GONE} OR NOT EXISTS (SELECT 1 FROM {parent.table} t WHERE {stays}))"

        def link(alias: str) -> str:
            pairs = zip(key.columns, key.parent_columns, strict=True)
            return " AND ".join(f"{alias}.{name(mine)} = p.{name(theirs)}" for mine, theirs in pairs)

        different = "c.lg_n <> p.lg_n"
        yield (
            f"SELECT c.lg_n, p.lg_n FROM {child.stage} c JOIN {parent.stage} p ON {link('c')} "
            f"WHERE c.lg_op = {PUT} AND {different} AND {moves}"
        )
        before = self.match(child, "b", "c")
        yield (
            f"SELECT c.lg_n, p.lg_n FROM {child.stage} c JOIN {child.table} b ON {before} "
            f"JOIN {parent.stage} p ON {link('b')} WHERE {different} AND {moves}"
        )


def sort_holders(
    rows: Sequence[Sequence[Any]], table: StagedTable, number: int, edges: list[Edge], clashes: list[Clash]
) -> None:
    """Adds each row of the answer to `Questions.holders` to the edges or to the clashes."""
    for acquirer, holder, keeps, slot, *key in rows:
        if holder is not None and not keeps and int(slot) >= 0:
            edges.append(Edge(int(holder), int(acquirer), number))
        else:
            clashes.append(
                Clash(
                    row=int(acquirer), table=table.schema.name, key=table.schema.unique_keys[number].name,
                    other=None if holder is None else int(holder), holder=", ".join(map(str, key)),
                )
            )  # fmt: skip


def add_duplicates(rows: Sequence[Sequence[Any]], table: StagedTable, number: int, clashes: list[Clash]) -> None:
    """Adds the answer to `Questions.duplicates` to the clashes."""
    # A row that held the value before the batch is not the faulty one.
    keepers = {clash.other for clash in clashes if clash.other is not None}
    for row, other, *key in rows:
        if int(row) not in keepers:
            clashes.append(
                Clash(
                    row=int(row), table=table.schema.name, key=table.schema.unique_keys[number].name,
                    other=int(other), holder=", ".join(map(str, key)),
                )
            )  # fmt: skip
