"""The writing statements: release of keys, UPDATE, INSERT and DELETE, ordered so that no row blocks another one.

1. Rows to delete are deleted, children before parents, in tables that no foreign key refers to.
2. Rows whose key value another row needs release the value: they are deleted and inserted again later; or, if a foreign key
   refers to the table, they are parked: one column of the contested key is set to NULL.
3. Existing rows are updated and missing rows are inserted, parents before children.
4. Rows to delete are deleted in the tables that foreign keys refer to. By now their children are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakegate.errors import UnsupportedTable
from lakegate.syncs.plan.apply_protocol import ALL
from lakegate.syncs.plan.net_changes import Net
from lakegate.syncs.plan.table_schema import ForeignKey, TableSchema, circular, openable
from lakegate.syncs.targets.dialect import Dialect
from lakegate.syncs.targets.staging import GONE, PUT, Questions, StagedTable
from lakegate.syncs.targets.swallowed import Swallowed

CHUNK = 1000
"""The maximum number of staged rows that one statement marks."""
Tables = Callable[[Sequence[str]], Mapping[str, TableSchema]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """The foreign keys that lead from a table back to the same table and are checked immediately."""

    across: tuple[str, ...]
    """Nullable columns of keys that lead through other tables. They are NULL until all tables have their rows."""
    own: tuple[tuple[str, str | None], ...]
    """Columns of keys that refer to the same table, and their temporary value: NULL, or otherwise the value of the named column
    of the same row, so that the row refers to itself."""
    tight: tuple[ForeignKey, ...]
    """The self-referencing keys whose columns are NOT NULL."""

    def __bool__(self) -> bool:
        return bool(self.across or self.own)


class Writing:
    """Executes the writing statements of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._questions = Questions(dialect)
        self._swallowed = Swallowed(dialect)

    def stage_table(
        self, name: str, schema: TableSchema, origin: Sequence[str], *, is_temporary: bool
    ) -> Sequence[str]:
        """Returns the statements that create a staging table. Its columns are those of the target, all nullable."""
        quoted = self._dialect.name
        columns = [
            "lg_n bigint PRIMARY KEY", "lg_op smallint", "lg_mask int", "lg_slot bigint DEFAULT 0",
            "lg_vacate bigint DEFAULT 0", "lg_full smallint DEFAULT 0", *origin,
        ]  # fmt: skip
        for column in schema.columns:
            made = f" GENERATED ALWAYS AS ({column.generated}) STORED" if column.generated is not None else ""
            # NULL is explicit because MariaDB may be configured to make a `timestamp` NOT NULL by default.
            columns.append(f"{quoted(column.name)} {column.type}{made or ' NULL'}")
        key = [column for column in schema.columns if column.name in schema.identity]
        return self._dialect.stage_table(name, columns, key, is_temporary=is_temporary)

    def assign(self, cursor: Any, table: StagedTable, marks: Sequence[tuple[int, int | None, int | None]]) -> None:
        """Sets slot and released keys of staged rows. A mark is (row, slot or None, bits of the keys or None)."""
        groups: dict[tuple[int | None, int | None], list[int]] = {}
        for n, slot, bits in marks:
            groups.setdefault((slot, bits), []).append(n)
        for (slot, bits), rows in groups.items():
            sets = [f"lg_slot = {slot}"] if slot is not None else []
            sets += [f"lg_vacate = {bits}"] if bits is not None else []
            for which in _chunks(rows):
                cursor.execute(f"UPDATE {table.stage} SET {', '.join(sets)} WHERE lg_n IN ({which})")

    def take_back(self, cursor: Any, table: StagedTable, rows: Sequence[int]) -> None:
        """Deletes these rows from the staging table."""
        for which in _chunks(rows):
            cursor.execute(f"DELETE FROM {table.stage} WHERE lg_n IN ({which})")

    def apply(self, cursor: Any, tables: Sequence[StagedTable], slot: int, net: Net, schemas: Tables) -> None:
        """Applies one slot, or all slots.

        Args:
            cursor: A cursor with an open transaction.
            tables: The tables of the batch, parents first.
            slot: The number of the slot, or `ALL`.
            net: The batch.
            schemas: Finds the tables that foreign keys refer to.
        """
        for statement in self._emptied(tables):
            cursor.execute(statement)
        self._swallowed.require_empty(cursor, [table for table in tables if table.is_emptied])
        some = [table for table in tables if table.count]
        mine = "s.lg_slot >= 0" if slot == ALL else f"s.lg_slot = {int(slot)}"
        circles = {table.schema.name: self._circle(table, schemas) for table in some}
        for table in reversed(some):
            if not table.schema.is_referenced:
                self._delete_gone(cursor, table, mine)
                for statement in self._delete_early(table, mine):
                    cursor.execute(statement)
        for table in some:
            if table.schema.is_referenced:
                self._require_numbers(cursor, table, mine)
                for statement in self._park(table, mine):
                    cursor.execute(statement)
        written: dict[str, int] = {}
        for table in some:
            written[table.schema.name] = self._put(cursor, table, mine, circles[table.schema.name])
            for statement in self._unpark(table, mine):
                cursor.execute(statement)
        for table in some:
            if circles[table.schema.name].across and table.put:
                for statement in self._close_circle(table, mine, circles[table.schema.name].across):
                    cursor.execute(statement)
        if slot == ALL:
            self._copies(cursor, tables, net)
        leaving = [table for table in reversed(some) if table.schema.is_referenced and table.gone]
        for table in leaving:
            for opening in self._open_circle(table, mine, circles[table.schema.name]):
                cursor.execute(opening)
        for table in leaving:
            self._delete_gone(cursor, table, mine, circles[table.schema.name])
        for table in some:
            self._swallowed.require_put(cursor, table, mine, written[table.schema.name])

    def _emptied(self, tables: Sequence[StagedTable]) -> Sequence[str]:
        emptied = [table.schema for table in reversed(tables) if table.is_emptied]
        return self._dialect.truncate(emptied) if emptied else ()

    def _circle(self, table: StagedTable, schemas: Tables) -> Circle:
        """Returns the foreign keys that lead back to the table and are checked immediately."""
        known = dict(schemas([table.schema.name]))
        waiting = [key.parent for key in table.schema.foreign_keys]
        while waiting:
            name = waiting.pop()
            if name not in known:
                known.update(schemas([name]))
                waiting.extend(key.parent for key in known[name].foreign_keys if name in known)
        keys = [key for key in circular(table.schema, known) if not key.is_deferrable]
        own: dict[str, str | None] = {}
        across = list[str]()
        for key in keys:
            nullable = openable(table.schema, key)
            if key.parent != table.schema.name:
                across += nullable
            elif nullable:
                own.update(dict.fromkeys(nullable))
            else:
                pairs = zip(key.columns, key.parent_columns, strict=True)
                own.update({mine: theirs for mine, theirs in pairs if own.get(mine, "") is not None})
        tight = tuple(key for key in keys if key.parent == table.schema.name and not openable(table.schema, key))
        return Circle(across=tuple(dict.fromkeys(across)), own=tuple(own.items()), tight=tight)

    def _delete_gone(self, cursor: Any, table: StagedTable, mine: str, circle: Circle | None = None) -> None:
        if table.gone:
            key = [self._dialect.name(one) for one in table.schema.identity]
            deleted = 0
            if circle is not None and circle.tight and self._dialect.checks_rows_one_by_one:
                for leaves in self._leaves(cursor, table, mine, circle.tight):
                    cursor.execute(self._dialect.delete(table.table, table.stage, key, f"s.lg_n IN ({leaves})"))
                    deleted += cursor.rowcount
            cursor.execute(self._dialect.delete(table.table, table.stage, key, f"s.lg_op = {GONE} AND {mine}"))
            self._swallowed.require_gone(cursor, table, mine, deleted + cursor.rowcount)

    def _leaves(self, cursor: Any, table: StagedTable, mine: str, tight: Sequence[ForeignKey]) -> Iterator[str]:
        """Yields rows to delete that no other row refers to. Repeats, as each deletion may free further rows."""
        name, match = self._dialect.name, self._questions.match(table, "t", "s")
        another = f"NOT ({self._questions.match(table, 'c', 't')})"
        links = (
            " AND ".join(f"c.{name(a)} = t.{name(b)}" for a, b in zip(key.columns, key.parent_columns, strict=True))
            for key in tight
        )
        free = " AND ".join(f"NOT EXISTS (SELECT 1 FROM {table.table} c WHERE {link} AND {another})" for link in links)
        seen: set[int] = set()
        while True:
            cursor.execute(
                f"SELECT s.lg_n FROM {table.stage} s JOIN {table.table} t ON {match} "
                f"WHERE s.lg_op = {GONE} AND {mine} AND {free} ORDER BY s.lg_n"
            )
            found = [n for (n,) in cursor.fetchall() if n not in seen]
            if not found:  # none is left, or a trigger kept the rows that were deleted
                return
            seen.update(found)
            yield from _chunks(found)

    def _delete_early(self, table: StagedTable, mine: str) -> Iterator[str]:
        key = [self._dialect.name(one) for one in table.schema.identity]
        if table.vacated and table.put and self._vacating(table):
            where = f"s.lg_op = {PUT} AND {self._bits(table)} AND {mine}"
            # Keep the columns that are missing in the events: the whole row is inserted again.
            yield from self._fill(table, where)
            yield self._dialect.delete(table.table, table.stage, key, where)
        if self._is_renumbered(table):
            where = f"{self._renumbered(table)} AND {mine}"
            yield from self._fill(table, where)
            yield self._dialect.delete(table.table, table.stage, key, where)

    def replaces(self, table: StagedTable) -> bool:
        """Returns whether rows may be deleted and inserted again. The table must have no foreign key that refers to it."""
        lets_go = bool(table.vacated and table.put and self._vacating(table))
        return not table.schema.is_referenced and (lets_go or self._is_renumbered(table))

    def _is_renumbered(self, table: StagedTable) -> bool:
        """Returns whether the value of a column that no UPDATE may set may have changed."""
        return bool(
            table.put and not table.is_emptied and any(said.intersection(table.numbered) for said in table.masks)
        )

    def _renumbered(self, table: StagedTable) -> str:
        """Returns the condition for rows `s` whose value of a numbered column differs from that of `t`."""
        name = self._dialect.name
        changed = [
            f"(s.lg_mask = {mask} AND NOT ({self._dialect.same(f't.{name(one)}', f's.{name(one)}')}))"
            for said, mask in table.masks.items()
            for one in table.numbered
            if one in said
        ]
        return f"s.lg_op = {PUT} AND ({' OR '.join(changed)})"

    def _require_numbers(self, cursor: Any, table: StagedTable, mine: str) -> None:
        """Checks that no value of a numbered column changes: a row that a foreign key may refer to cannot be inserted again.

        Raises:
            UnsupportedTable: Such a value changes.
        """
        if not self._is_renumbered(table):
            return
        match = self._questions.match(table, "t", "s")
        cursor.execute(
            f"SELECT 1 FROM {table.table} t JOIN {table.stage} s ON {match} WHERE {self._renumbered(table)} AND {mine} LIMIT 1"
        )
        if cursor.fetchone() is not None:
            raise UnsupportedTable(
                "the value of a GENERATED ALWAYS column changes in a table that a foreign key refers to; the batch was not applied",
                advice="Make the column GENERATED BY DEFAULT",
                table=table.schema.name,
                column=", ".join(table.numbered),
            )

    def _vacating(self, table: StagedTable) -> int:
        """Returns the bits of contested keys that are checked immediately. Deferred keys need no release."""
        keys = table.schema.unique_keys
        return sum(1 << i for i, key in enumerate(keys) if table.vacated >> i & 1 and not key.is_deferrable)

    def _bits(self, table: StagedTable) -> str:
        return f"(s.lg_vacate & {self._vacating(table)}) <> 0"

    def _fill(self, table: StagedTable, where: str) -> Iterator[str]:
        name = self._dialect.name
        for said, mask in table.masks.items():
            missing = [column.name for column in table.schema.stored if column.name not in said]
            if not missing:
                continue
            yield self._dialect.change(
                (table.stage, "s"), (table.table, "t"), self._questions.match(table, "s", "t"),
                [*((one, f"t.{name(one)}") for one in missing), ("lg_full", "1")],
                f"s.lg_mask = {mask} AND s.lg_full = 0 AND {where}",
            )  # fmt: skip

    def _parked(self, table: TableSchema, number: int) -> tuple[str, str]:
        """Returns the column, and an expression over `t` and `s`, that frees the value of a unique key.

        Raises:
            UnsupportedTable: The table has no such column.
        """
        key = table.unique_keys[number]
        if key.park is not None:
            return key.park, "NULL"
        led = {column for each in table.foreign_keys for column in each.columns}
        own = [one for one in table.stored if one.name in key.columns - {*table.identity} and not one.is_numbered]
        # An unused value breaks a foreign key of its column, and a part of the key may map the value to one in use.
        for column in sorted(own, key=lambda one: (one.name in led, one.name not in key.plain)):
            value = self._dialect.unused(column)
            if value is not None:
                return column.name, value
        if key.park_last is not None:
            return key.park_last, "NULL"
        raise UnsupportedTable(
            "rows exchange values of a key that cannot be freed for a moment: a foreign key refers to the table, and the "
            "key's columns are NOT NULL; the batch was not applied",
            advice="Make one of the key's columns nullable, or (PostgreSQL) the constraint DEFERRABLE",
            table=table.name,
            key=key.name,
        )

    def _park(self, table: StagedTable, mine: str) -> Iterator[str]:
        for number, _ in enumerate(table.schema.unique_keys):
            if self._vacating(table) >> number & 1:
                yield self._dialect.change(
                    (table.table, "t"), (table.stage, "s"), self._questions.match(table, "t", "s"),
                    [self._parked(table.schema, number)],
                    f"(s.lg_vacate & {1 << number}) <> 0 AND {mine}",
                )  # fmt: skip

    def _put(self, cursor: Any, table: StagedTable, mine: str, circle: Circle) -> int:
        """Updates existing rows and inserts missing rows; returns how many rows were written.

        In a table that refers to itself, all rows are inserted before any row is updated, because an existing row may refer
        to a new row. The UPDATE then sets the columns that were left open.
        """
        if not table.put:
            return 0
        name, match = self._dialect.name, self._questions.match(table, "t", "s")
        stored = [column.name for column in table.schema.stored]
        order = "lg_n" if circle else ", ".join(f"s.{name(one)}" for one in table.schema.identity)
        absent = f"NOT EXISTS (SELECT 1 FROM {table.table} t WHERE {match})"
        numbered = (column.name for column in table.schema.columns if column.is_numbered)
        fixed = {*circle.across, *numbered, *(table.schema.identity if table.is_exact else ())}
        kinds = [
            ([one for one in stored if one in said], f"s.lg_mask = {mask} AND s.lg_full = 0")
            for said, mask in table.masks.items()
        ]
        if table.may_be_filled:
            kinds.append((stored, "s.lg_full = 1"))
        is_open = self._dialect.checks_rows_one_by_one or len(kinds) > 1
        opened = self._opened(circle, "s", has_own=is_open)

        def insert(columns: Sequence[str], which: str) -> int:
            rows = f"{table.stage} s WHERE s.lg_op = {PUT} AND {which} AND {mine} AND {absent}"
            if len(columns) < len(stored):
                # A strict server refuses an INSERT without a column that has no default, even if it inserts no row.
                cursor.execute(f"SELECT 1 FROM {rows} LIMIT 1")
                if cursor.fetchone() is None:
                    return 0
            values = ", ".join(opened.get(one, f"s.{name(one)}") for one in columns)
            cursor.execute(
                f"{self._dialect.insert_into(table.table)} ({', '.join(map(name, columns))}) {self._dialect.insert_words} "
                f"SELECT {values} FROM {rows} ORDER BY {order}"
            )
            return int(cursor.rowcount)

        def update(columns: Sequence[str], which: str) -> int:
            sets = [(one, f"s.{name(one)}") for one in columns if one not in fixed]
            if not sets or (table.is_emptied and not circle.own):
                return 0
            where = f"s.lg_op = {PUT} AND {which} AND {mine}"
            cursor.execute(self._dialect.change((table.table, "t"), (table.stage, "s"), match, sets, where))
            return int(cursor.rowcount)

        if not circle.own:
            return sum(update(*kind) + insert(*kind) for kind in kinds)
        inserted = [insert(*kind) for kind in kinds]
        if sum(inserted) == table.put and not is_open:
            return table.put
        return sum(max(new, update(*kind)) for new, kind in zip(inserted, kinds, strict=True))

    def _unpark(self, table: StagedTable, mine: str) -> Iterator[str]:
        """Restores parked columns that the change does not contain."""
        name, match = self._dialect.name, self._questions.match(table, "t", "s")
        if table.schema.is_referenced and table.put:
            for number in range(len(table.schema.unique_keys)):
                if self._vacating(table) >> number & 1:
                    column, _ = self._parked(table.schema, number)
                    yield self._dialect.change(
                        (table.table, "t"), (table.stage, "s"), match,
                        [(column, f"s.{name(column)}"), *self._kept(table, [column])],
                        f"s.lg_op = {PUT} AND (s.lg_vacate & {1 << number}) <> 0 AND {mine}",
                    )  # fmt: skip

    def _close_circle(self, table: StagedTable, mine: str, circle: Sequence[str]) -> Iterator[str]:
        name = self._dialect.name
        for said, mask in table.masks.items():
            # In a row that was inserted again as a whole, all these columns were left open.
            for columns, which in (([one for one in circle if one in said], "0"), (list(circle), "1")):
                if columns:
                    yield self._dialect.change(
                        (table.table, "t"), (table.stage, "s"), self._questions.match(table, "t", "s"),
                        [*((one, f"s.{name(one)}") for one in columns), *self._kept(table, columns)],
                        f"s.lg_op = {PUT} AND s.lg_mask = {mask} AND s.lg_full = {which} AND {mine}",
                    )  # fmt: skip

    def _kept(self, table: StagedTable, written: Sequence[str]) -> Iterator[tuple[str, str]]:
        """For the second UPDATE of a row: automatically updated columns keep the value that the first UPDATE gave them."""
        for column in table.schema.columns:
            if column.is_renewed and column.name not in written:
                yield column.name, f"t.{self._dialect.name(column.name)}"

    def _open_circle(self, table: StagedTable, mine: str, circle: Circle) -> Iterator[str]:
        """Clears the references of rows that are about to be deleted."""
        opened = self._opened(circle, "t", has_own=self._dialect.checks_rows_one_by_one)
        for one in (column for key in circle.tight for column in key.columns):
            opened.pop(one, None)
        if opened:
            yield self._dialect.change(
                (table.table, "t"), (table.stage, "s"), self._questions.match(table, "t", "s"),
                list(opened.items()), f"s.lg_op = {GONE} AND {mine}",
            )  # fmt: skip

    def _opened(self, circle: Circle, alias: str, *, has_own: bool) -> dict[str, str]:
        """Returns column → temporary value while some rows are still missing."""
        own = {one: "NULL" if other is None else f"{alias}.{self._dialect.name(other)}" for one, other in circle.own}
        return {**dict.fromkeys(circle.across, "NULL"), **(own if has_own else {})}

    def _copies(self, cursor: Any, tables: Sequence[StagedTable], net: Net) -> None:
        """Writes rows of tables without a key one at a time: first all deletions, then all insertions."""
        by_name = {table.schema.name: table for table in tables}
        for copies in sorted(net.copies, key=lambda each: each.count):
            table = by_name[copies.table]
            columns = table.schema.stored
            names = [column.name for column in columns]
            values = [self._dialect.value(column, copies.image[column.name]) for column in columns]
            if copies.count < 0:
                sql = self._dialect.one_copy(table.table, columns)
            else:
                marks = ", ".join([self._dialect.mark] * len(names))
                said = ", ".join(map(self._dialect.name, names))
                head = self._dialect.insert_into(table.table)
                sql = f"{head} ({said}) {self._dialect.insert_words} VALUES ({marks})"
            for _ in range(abs(copies.count)):
                cursor.execute(sql, values)
                if cursor.rowcount != 1:
                    self._swallowed.require_copy(cursor, table, values, is_gone=copies.count < 0)


def _chunks(rows: Sequence[int]) -> Iterator[str]:
    # These are our own row numbers, not values from the data.
    for begin in range(0, len(rows), CHUNK):
        yield ", ".join(str(int(n)) for n in rows[begin : begin + CHUNK])
