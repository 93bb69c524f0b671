"""SQLite: embedded, one writer; staging tables are temporary."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlsplit

from lakegate.errors import InvalidRequest, Unavailable
from lakegate.syncs.plan.apply_protocol import Violated
from lakegate.syncs.plan.table_schema import Column, TableSchema
from lakegate.syncs.plan.values import Misfit
from lakegate.syncs.targets import faults
from lakegate.syncs.targets import sqlite_values as values
from lakegate.syncs.targets.dialect import Connection, Named
from lakegate.syncs.targets.encode import encoded, rows_of
from lakegate.syncs.targets.faults import KnownFault
from lakegate.syncs.targets.sequences import MovedSequence
from lakegate.syncs.targets.sqlite_catalog import has_conflict_clause, quoted, read_tables

BUSY_S = 10.0
"""How long a transaction waits for another process that writes."""
TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "real",
    Decimal: "numeric",
    str: "text",
    bytes: "blob",
    date: "text",
    datetime: "text",
    dict: "text",
    list: "text",
}
CONTROL = (
    "CREATE TABLE IF NOT EXISTS lakegate_stream (stream text PRIMARY KEY, epoch integer NOT NULL, "
    "last_batch integer NOT NULL, position integer NOT NULL, pending integer, place text, pending_place text)",
    "CREATE TABLE IF NOT EXISTS lakegate_slot (stream text, batch integer, slot integer, "
    "PRIMARY KEY (stream, batch, slot))",
    "CREATE TABLE IF NOT EXISTS lakegate_dead (stream text, batch integer, n integer, table_name text, row_key text, "
    "image text, seq integer, reason text, PRIMARY KEY (stream, batch, n))",
    "CREATE TABLE IF NOT EXISTS lakegate_delay (stream text PRIMARY KEY, delays text)",
)


def path_of(dsn: str) -> str:
    """Returns the file of `sqlite:PATH` or `sqlite:///PATH`.

    Raises:
        InvalidRequest: The address has options; SQLite addresses have none.
    """
    if dsn.startswith("sqlite://") and urlsplit(dsn).query:
        raise InvalidRequest(
            "the address of a SQLite database has no options; nothing was done",
            advice="sqlite:PATH or sqlite:///PATH",
            option=urlsplit(dsn).query.partition("=")[0],
        )
    path = urlsplit(dsn).path if dsn.startswith("sqlite://") else dsn.removeprefix("sqlite:")
    return "/" + path.lstrip("/") if path.startswith("/") else path


class SqliteDialect:
    """See `Dialect`."""

    errors: tuple[type[BaseException], ...] = (sqlite3.Error, OverflowError, UnicodeEncodeError, Misfit)
    mark = "?"
    share = ""
    update = ""
    types: Mapping[type, str] = TYPES
    slot_rows_max: int | None = None
    writers_max: int | None = 1
    ignores_case = True
    checks_rows_one_by_one = False
    has_network = False
    insert_words = ""

    def __init__(self, dsn: str, *, busy_s: float = BUSY_S) -> None:
        self._path, self._busy_s = path_of(dsn), busy_s
        self._lenient: set[str] = set()
        """Quoted names of tables whose definition has an ON CONFLICT clause."""

    def connect(self) -> Connection:
        # `rw` creates no file: otherwise a mistyped path would become a new, empty database.
        place = f"file:{quote(self._path)}?mode=rw"
        try:
            connection = sqlite3.connect(
                place, uri=True, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the target database does not answer: {error}", file=self._path) from error
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def cut(self, connection: Any) -> None:
        connection.interrupt()

    def name(self, text: str) -> str:
        return quoted(text)

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA defer_foreign_keys = ON")

    def end_trial(self, connection: Any) -> None:
        broken = set(connection.execute("PRAGMA foreign_key_check"))
        connection.rollback()
        if broken and broken - set(connection.execute("PRAGMA foreign_key_check")):
            error = sqlite3.IntegrityError("FOREIGN KEY constraint failed")
            error.sqlite_errorcode = sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY
            raise error

    def snapshot(self, connection: Any) -> None:
        connection.execute("BEGIN")

    def catalogue(self, connection: Connection, names: Iterable[str]) -> Mapping[str, TableSchema]:
        names = list(names)
        for name in names:
            if has_conflict_clause(connection, name):
                self._lenient.add(quoted(name))
        return read_tables(connection, names)

    def control(self) -> Sequence[str]:
        return CONTROL

    def stage_table(
        self, name: str, columns: Sequence[str], key: Sequence[Column], *, is_temporary: bool
    ) -> Sequence[str]:
        parts = ", ".join(quoted(column.name) for column in key)
        index = quoted(name.strip('"') + "_key")
        return [
            f"CREATE TEMP TABLE {name} ({', '.join(columns)})",
            f"CREATE INDEX temp.{index} ON {name} ({parts})",
        ]

    def stage_tables(self, connection: Connection, prefix: str) -> Sequence[str]:
        return ()  # temporary tables end with their connection

    def empty(self, connection: Connection, table: str) -> None:
        connection.cursor().execute(f"DELETE FROM {table}")

    def write(
        self,
        connection: Connection,
        table: str,
        columns: Sequence[str],
        types: Sequence[Column | None],
        rows: Iterable[Sequence[Any]],
    ) -> None:
        marks = ", ".join("?" * len(columns))
        connection.cursor().executemany(
            f"INSERT INTO {table} ({', '.join(map(quoted, columns))}) VALUES ({marks})",
            rows_of(rows, types, values.plain, values.encode),
        )

    def value(self, column: Column, value: Any) -> object:
        return value if value.__class__ in values.plain(column) else encoded(column, value, values.encode)

    def analyze(self, connection: Connection, table: str, rows: int) -> None:
        """Does nothing: the index on the key is all that SQLite's planner needs."""

    def delete(self, table: str, stage: str, key: Sequence[str], where: str) -> str:
        mine, theirs = ", ".join(key), ", ".join(f"s.{one}" for one in key)
        return f"DELETE FROM {table} WHERE ({mine}) IN (SELECT {theirs} FROM {stage} s WHERE {where})"

    def change(self, table: Named, other: Named, match: str, sets: Sequence[tuple[str, str]], where: str) -> str:
        changed = ", ".join(f"{quoted(column)} = {value}" for column, value in sets)
        verb = f"UPDATE {self._or_abort(table[0])}{table[0]}"
        return f"{verb} AS {table[1]} SET {changed} FROM {other[0]} AS {other[1]} WHERE {match} AND {where}"

    def same(self, left: str, right: str) -> str:
        return f"{left} IS {right}"

    def parameter(self, column: Column, value: object) -> object:
        return self.value(column, value)

    def stored_same(self, column: Column, left: str, right: str) -> str:
        return f"({left} IS {right} COLLATE BINARY)"

    def one_copy(self, table: str, columns: Sequence[Column]) -> str:
        same = self.same_row(columns)
        return f"DELETE FROM {table} WHERE rowid = (SELECT rowid FROM {table} WHERE {same} LIMIT 1)"

    def same_row(self, columns: Sequence[Column]) -> str:
        return " AND ".join(f"{quoted(column.name)} IS ?" for column in columns)

    def insert_into(self, table: str) -> str:
        return f"INSERT {self._or_abort(table)}INTO {table}"

    def _or_abort(self, table: str) -> str:
        """Returns OR ABORT for a table whose own ON CONFLICT clause would skip a conflict or delete the other row."""
        return "OR ABORT " if table in self._lenient else ""

    def truncate(self, tables: Sequence[TableSchema]) -> Sequence[str]:
        return [f"DELETE FROM {table.sql_name}" for table in tables]

    def unused(self, column: Column) -> str | None:
        if "int" in column.kind:
            return f"{-(1 << 63)} + s.lg_n"
        return "char(1) || s.lg_n" if "char" in column.kind or "text" in column.kind else None

    def fault(self, error: BaseException) -> KnownFault:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None:
            return faults.of_sqlite(code)
        # An error of the driver: a value that it cannot bind.
        return faults.OTHER if isinstance(error, sqlite3.OperationalError | sqlite3.InternalError) else faults.VIOLATION

    def value_bytes_max(self, connection: Connection) -> int | None:
        return None

    def violated(self, error: BaseException) -> Violated:
        words = str(error)
        constraint = words.partition("constraint failed: ")[2] or None
        is_foreign_key = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY
        return Violated(reason=words, constraint=constraint, is_foreign_key=is_foreign_key)

    def move_sequences(self, cursor: Any, table: str) -> Sequence[MovedSequence]:
        return ()  # SQLite's counters follow inserted values

    def is_repeated(self, error: BaseException) -> bool:
        return False  # SQLite commits a definition and the position in one transaction
