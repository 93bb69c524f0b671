"""Reads the source database for a comparison: whole tables, in chunks, in one snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lakegate.errors import Unavailable
from lakegate.syncs.plan.net_changes import Key
from lakegate.syncs.plan.table_schema import Column, TableSchema
from lakegate.syncs.targets.dialect import Connection, Dialect

NATIVE = frozenset({"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "bytea"})
"""PostgreSQL types that the driver reads exactly. Other types are read as the server's text."""


class SourceRows:
    """A connection in one transaction with one snapshot. Use as a context manager."""

    def __init__(self, dialect: Dialect, target_kind: str) -> None:
        """Opens no connection yet. `target_kind`: the class name of the target's dialect."""
        self._dialect, self._is_postgres = dialect, type(dialect).__name__ == "PostgresDialect"
        self._is_same_kind = type(dialect).__name__ == target_kind
        self.troubles: dict[str, str] = {}
        self._tables: dict[str, tuple[TableSchema, TableSchema]] = {}

    def __enter__(self) -> SourceRows:
        try:
            self._connection: Connection = self._dialect.connect()
            self._dialect.snapshot(self._connection)
        except self._dialect.errors as error:
            raise Unavailable(f"the source database does not answer: {' '.join(str(error).split())}") from error
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(*self._dialect.errors):
            self._connection.close()

    def meet(self, source_name: str, target: TableSchema) -> str | None:
        """Finds a table at the source; returns why it cannot be compared, or None."""
        found = self._dialect.catalogue(self._connection, [source_name]).get(source_name)
        if found is None:
            return f"the source database has no table {source_name}"
        missing = set(target.identity) - {column.name for column in found.columns}
        if missing:
            return f"the source's table lacks columns of the key: {', '.join(sorted(missing))}"
        self._tables[target.name] = found, target
        return None

    def notes(self, name: str) -> list[str]:
        """Returns notes on columns that only one of the two tables has."""
        source, target = self._tables[name]
        mine, theirs = ({column.name for column in one.columns} for one in (source, target))
        found = []
        for what, names in (("only at the source", mine - theirs), ("only in the target", theirs - mine)):
            if names:
                found.append(f"columns {what}, not compared: {', '.join(sorted(names))}")
        return found

    def is_whole(self, name: str) -> bool:
        """Returns True: all rows are read."""
        return True

    def chunks(self, name: str, rows_max: int) -> Iterator[list[tuple[Key, dict[str, object]]]]:
        """Yields the source rows of a target table in chunks: key and image."""
        columns, sql = self._select(name)
        identity = self._tables[name][1].identity
        with contextlib.closing(self._streaming()) as cursor:
            cursor.execute(sql)
            while rows := cursor.fetchmany(rows_max):
                images = [dict(zip(columns, row, strict=True)) for row in rows]
                yield [(tuple(image[one] for one in identity), image) for image in images]

    def row(self, name: str, key: Key) -> Mapping[str, Any] | None:
        """Returns one row by its key; None if it does not exist."""
        columns, sql = self._select(name)
        identity = self._tables[name][1].identity
        where = " AND ".join(f"{self._dialect.name(one)} = {self._dialect.mark}" for one in identity)
        cursor = self._connection.cursor()
        cursor.execute(f"{sql} WHERE {where}", tuple(key))
        found = cursor.fetchone()
        return None if found is None else dict(zip(columns, found, strict=True))

    def _streaming(self) -> Any:
        """Returns a server-side cursor where the driver has one."""
        connection: Any = self._connection
        if self._is_postgres:
            return connection.cursor(name="lakegate_verify")
        if type(self._dialect).__name__ == "MariadbDialect":
            from pymysql.cursors import SSCursor

            return connection.cursor(SSCursor)
        return connection.cursor()

    def _select(self, name: str) -> tuple[Sequence[str], str]:
        source, target = self._tables[name]
        wanted = {column.name for column in target.stored}
        columns = [column for column in source.columns if column.name in wanted]
        fields = ", ".join(self._field(column) for column in columns)
        return [column.name for column in columns], f"SELECT {fields} FROM {source.sql_name}"

    def _field(self, column: Column) -> str:
        name = self._dialect.name(column.name)
        if not self._is_postgres or column.kind in NATIVE or (column.kind.endswith("[]") and not self._is_same_kind):
            return name
        return f"{name}::text"
