"""Compares a snapshot of a target with rows staged in temporary tables, by the target's own types and equality."""

from __future__ import annotations

from collections.abc import Sequence

from lakegate.syncs.plan.apply_protocol import SyncProgress
from lakegate.syncs.plan.change import Image
from lakegate.syncs.plan.difference import Difference
from lakegate.syncs.plan.net_changes import Key, NetRow
from lakegate.syncs.plan.table_schema import TableSchema
from lakegate.syncs.targets.apply_sql import Writing
from lakegate.syncs.targets.dialect import Connection, Dialect
from lakegate.syncs.targets.faults import FaultKind
from lakegate.syncs.targets.staging import PUT, Questions, StagedTable

ROWS, KEYS = "lakegate_verify_rows", "lakegate_verify_keys"


class SqlComparison:
    """See `lakegate.syncs.verify.Comparison`. Uses one connection, in one transaction with one snapshot."""

    def __init__(self, dialect: Dialect, connection: Connection, progress: SyncProgress | None, set_apart: int) -> None:
        self.progress, self.set_apart = progress, set_apart
        self._dialect, self._connection, self._cursor = dialect, connection, connection.cursor()
        self._questions, self._writing = Questions(dialect), Writing(dialect)
        self._made: dict[str, tuple[str, str]] = {}

    def rows(self, table: TableSchema) -> int:
        self._cursor.execute(f"SELECT count(*) FROM {table.sql_name}")
        return int(self._cursor.fetchone()[0])

    def range(self, table: TableSchema, rows: Sequence[tuple[Key, Image]]) -> list[Difference]:
        stage, keys = self._stages(table)
        staged = StagedTable(table, table.sql_name, stage)
        net = [NetRow(n, table.name, key, image, None, 0) for n, (key, image) in enumerate(rows)]
        for row in net:
            staged.add(row)
        self._dialect.empty(self._connection, stage)
        refused = self._write(staged, net)
        self._dialect.analyze(self._connection, stage, len(net))
        identity = ", ".join(map(self._dialect.name, table.identity))
        self._cursor.execute(f"INSERT INTO {keys} (lg_n, {identity}) SELECT lg_n, {identity} FROM {stage}")
        found = [(n, Difference(table=table.name, key=rows[n][0], kind="refused")) for n in refused]
        match = self._questions.match(staged, "t", "s")
        self._cursor.execute(
            f"SELECT s.lg_n FROM {stage} s WHERE s.lg_op = {PUT} "
            f"AND NOT EXISTS (SELECT 1 FROM {staged.table} t WHERE {match})"
        )
        for (n,) in self._cursor.fetchall():
            found.append((n, Difference(table=table.name, key=rows[n][0], kind="missing")))
        for said, mask in staged.masks.items():
            columns = [column for column in table.stored if column.name in said and column.name not in table.identity]
            if columns:
                same = [
                    self._dialect.stored_same(
                        column, f"s.{self._dialect.name(column.name)}", f"t.{self._dialect.name(column.name)}"
                    )
                    for column in columns
                ]
                flags = ", ".join(f"CASE WHEN {one} THEN 1 ELSE 0 END" for one in same)
                self._cursor.execute(
                    f"SELECT s.lg_n, {flags} FROM {stage} s JOIN {staged.table} t ON {match} "
                    f"WHERE s.lg_mask = {mask} AND NOT ({' AND '.join(same)})"
                )
                for n, *is_same in self._cursor.fetchall():
                    names = tuple(column.name for column, same in zip(columns, is_same, strict=True) if not same)
                    found.append((n, Difference(table=table.name, key=rows[n][0], kind="different", columns=names)))
        return [one for _, one in sorted(found, key=lambda each: each[0])]

    def extras(self, table: TableSchema, listed_max: int) -> tuple[int, list[Difference]]:
        _, keys = self._stages(table)
        name = self._dialect.name
        match = " AND ".join(f"t.{name(one)} = k.{name(one)}" for one in table.identity)
        rest = f"FROM {table.sql_name} t WHERE NOT EXISTS (SELECT 1 FROM {keys} k WHERE {match})"
        self._cursor.execute(f"SELECT count(*) {rest}")
        count = int(self._cursor.fetchone()[0])
        listed: list[Difference] = []
        if count and listed_max > 0:
            fields = ", ".join(f"t.{name(one)}" for one in table.identity)
            self._cursor.execute(f"SELECT {fields} {rest} ORDER BY {fields} LIMIT {int(listed_max)}")
            listed = [Difference(table=table.name, key=tuple(key), kind="extra") for key in self._cursor.fetchall()]
        return count, listed

    def _stages(self, table: TableSchema) -> tuple[str, str]:
        """Returns the names of the temporary tables for rows and for keys; creates them at the first call."""
        if table.name not in self._made:
            n = len(self._made)
            stage, keys = self._dialect.name(f"{ROWS}_{n}"), self._dialect.name(f"{KEYS}_{n}")
            key = [column for column in table.columns if column.name in table.identity]
            made = [
                *self._writing.stage_table(stage, table, (), is_temporary=True),
                *self._dialect.stage_table(
                    keys, ["lg_n bigint", *(f"{self._dialect.name(one.name)} {one.type}" for one in key)], key,
                    is_temporary=True,
                ),
            ]  # fmt: skip
            for statement in made:
                self._cursor.execute(statement)
            self._made[table.name] = stage, keys
        return self._made[table.name]

    def _write(self, staged: StagedTable, rows: Sequence[NetRow]) -> list[int]:
        """Stages rows; finds rows that do not fit the target's types by halving, and returns their numbers."""
        columns = staged.stage_columns(1)
        types = {column.name: column for column in staged.schema.columns}
        self._cursor.execute("SAVEPOINT lakegate_verify")
        try:
            self._dialect.write(
                self._connection, staged.stage, columns, [types.get(one) for one in columns], staged.stage_rows(rows, 1)
            )
        except self._dialect.errors as error:
            if self._dialect.fault(error).fault is not FaultKind.VIOLATION:
                raise
            self._cursor.execute("ROLLBACK TO SAVEPOINT lakegate_verify")
        else:
            return []
        if len(rows) == 1:
            # Stage the key of the row anyway, so that the target's row does not count as extra.
            return [] if rows[0].image is None else [rows[0].n, *self._write(staged, [rows[0]._replace(image=None)])]
        middle = len(rows) // 2
        return [*self._write(staged, rows[:middle]), *self._write(staged, rows[middle:])]
