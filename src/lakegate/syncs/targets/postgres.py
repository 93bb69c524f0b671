"""PostgreSQL through psycopg 3: rows are staged by COPY."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from lakegate.errors import InvalidRequest, MissingExtra
from lakegate.syncs.plan.apply_protocol import Violated
from lakegate.syncs.plan.table_schema import Column, TableSchema
from lakegate.syncs.plan.values import Misfit
from lakegate.syncs.targets import faults
from lakegate.syncs.targets import postgres_values as values
from lakegate.syncs.targets.dialect import Connection, Named
from lakegate.syncs.targets.encode import encoded, rows_of, text_of
from lakegate.syncs.targets.faults import KnownFault
from lakegate.syncs.targets.postgres_catalog import read_tables
from lakegate.syncs.targets.sequences import MovedSequence, move_postgres

try:
    import psycopg
    import psycopg.conninfo
    from psycopg import sql
except ImportError as error:
    raise MissingExtra("the PostgreSQL driver is not installed", advice="pip install 'lakegate[postgres]'") from error

LOCK_WAIT_MS = 10_000
"""How long a statement waits for a lock. Then the transaction is retried a limited number of times."""
SILENCE = {
    "connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}  # fmt: skip
"""Seconds (the last one milliseconds), for options that the address does not set. A connection counts as lost after about a
minute without an answer."""
ANALYZE_ROWS = 2_000
"""From this number of rows on, ANALYZE of the staging table pays off."""
AS_TEXT = values.NO_EQUALITY | values.OTHER_EQUALITY | {"text", "varchar", "bpchar", "citext", "name"}
"""Types that are compared as text, because they have no equality or a looser one."""
INTEGERS = {"int2": -(1 << 15), "int4": -(1 << 31), "int8": -(1 << 63)}
TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    Decimal: "numeric",
    str: "text",
    bytes: "bytea",
    date: "date",
    datetime: "timestamptz",
    dict: "jsonb",
    list: "jsonb",
}
CONTROL = (
    # The lock lets one of several concurrent processes create the tables: two concurrent IF NOT EXISTS can collide.
    "SELECT pg_advisory_xact_lock(7521894413)",
    "CREATE TABLE IF NOT EXISTS lakegate_stream (stream text PRIMARY KEY, epoch bigint NOT NULL, "
    "last_batch bigint NOT NULL, position bigint NOT NULL, pending bigint, place text, pending_place text)",
    "CREATE TABLE IF NOT EXISTS lakegate_slot (stream text, batch bigint, slot int, PRIMARY KEY (stream, batch, slot))",
    "CREATE TABLE IF NOT EXISTS lakegate_dead (stream text, batch bigint, n bigint, table_name text, row_key text, "
    "image text, seq bigint, reason text, PRIMARY KEY (stream, batch, n))",
    "CREATE TABLE IF NOT EXISTS lakegate_delay (stream text PRIMARY KEY, delays text)",
)


class PostgresDialect:
    """See `Dialect`."""

    errors: tuple[type[BaseException], ...] = (psycopg.Error, UnicodeEncodeError, Misfit)
    mark = "%s"
    share = " FOR SHARE"
    update = " FOR UPDATE"
    types: Mapping[type, str] = TYPES
    slot_rows_max: int | None = None
    writers_max: int | None = None
    ignores_case = False
    checks_rows_one_by_one = False
    has_network = True
    insert_words = "OVERRIDING SYSTEM VALUE"

    def __init__(self, dsn: str, *, lock_wait_ms: int = LOCK_WAIT_MS) -> None:
        self._dsn, self._lock_wait_ms = dsn, lock_wait_ms

    def connect(self) -> Connection:
        connection = psycopg.connect(address_of(self._dsn), prepare_threshold=None)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", (f"{self._lock_wait_ms}ms",))
            cursor.execute("SELECT set_config('TimeZone', 'UTC', false), set_config('jit', 'off', false)")
            cursor.execute("SET client_min_messages = warning")
            # Rows that a policy hides would be neither written nor found. With `off` they cause an error.
            cursor.execute("SET row_security = off")
        connection.commit()
        return connection

    def cut(self, connection: Any) -> None:
        with socket.socket(fileno=os.dup(connection.fileno())) as mine:
            mine.shutdown(socket.SHUT_RDWR)

    def name(self, text: str) -> str:
        return sql.Identifier(text).as_string(None)

    def begin(self, connection: Connection) -> None:
        connection.cursor().execute("SET CONSTRAINTS ALL DEFERRED")

    def end_trial(self, connection: Connection) -> None:
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")
        connection.rollback()

    def snapshot(self, connection: Connection) -> None:
        connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    def catalogue(self, connection: Connection, names: Iterable[str]) -> Mapping[str, TableSchema]:
        return read_tables(connection, names, self.name)

    def control(self) -> Sequence[str]:
        return CONTROL

    def stage_table(
        self, name: str, columns: Sequence[str], key: Sequence[Column], *, is_temporary: bool
    ) -> Sequence[str]:
        # Unlogged: a server crash empties the table. This is noticed before anything is written; the batch is staged again.
        if is_temporary:
            return [f"CREATE TEMP TABLE {name} ({', '.join(columns)})"]
        return [f"CREATE UNLOGGED TABLE {name} ({', '.join(columns)}) WITH (autovacuum_enabled = false)"]

    def stage_tables(self, connection: Connection, prefix: str) -> Sequence[str]:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace "
            "AND starts_with(relname, %s)",
            (prefix,),
        )
        return [row[0] for row in cursor.fetchall()]

    def empty(self, connection: Connection, table: str) -> None:
        connection.cursor().execute(f"TRUNCATE {table}")

    def write(
        self,
        connection: Any,
        table: str,
        columns: Sequence[str],
        types: Sequence[Column | None],
        rows: Iterable[Sequence[Any]],
    ) -> None:
        names = ", ".join(map(self.name, columns))
        with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows_of(rows, types, values.plain, values.encode):
                copy.write_row(row)

    def value(self, column: Column, value: Any) -> object:
        return value if value.__class__ in values.plain(column) else encoded(column, value, values.encode)

    def analyze(self, connection: Connection, table: str, rows: int) -> None:
        if rows >= ANALYZE_ROWS:
            # A small sample is enough: only the number of rows matters.
            connection.cursor().execute(f"SET LOCAL default_statistics_target = 5; ANALYZE {table}")

    def delete(self, table: str, stage: str, key: Sequence[str], where: str) -> str:
        match = " AND ".join(f"t.{one} = s.{one}" for one in key)
        return f"DELETE FROM {table} t USING {stage} s WHERE {match} AND {where}"

    def change(self, table: Named, other: Named, match: str, sets: Sequence[tuple[str, str]], where: str) -> str:
        changed = ", ".join(f"{self.name(column)} = {value}" for column, value in sets)
        return f"UPDATE {table[0]} {table[1]} SET {changed} FROM {other[0]} {other[1]} WHERE {match} AND {where}"

    def same(self, left: str, right: str) -> str:
        return f"{left} IS NOT DISTINCT FROM {right}"

    def parameter(self, column: Column, value: object) -> object:
        value = self.value(column, value)
        # As text: the server derives the type from the context.
        return value if isinstance(value, bytes) or value is None else text_of(value)

    def stored_same(self, column: Column, left: str, right: str) -> str:
        kind = column.kind.removesuffix(values.ARRAY)
        if kind == "json":  # compared by value, not by text
            left, right = (f"{one}::{column.kind.replace('json', 'jsonb')}" for one in (left, right))
        elif kind in AS_TEXT:
            left, right = (f'{one}::text COLLATE "C"' for one in (left, right))
        return self.same(left, right)

    def one_copy(self, table: str, columns: Sequence[Column]) -> str:
        # With tableoid, because each partition and each inheriting table numbers its own rows.
        same = self.same_row(columns)
        return f"DELETE FROM {table} WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM {table} WHERE {same} LIMIT 1)"

    def same_row(self, columns: Sequence[Column]) -> str:
        return " AND ".join(_same_as_parameter(self.name(column.name), column) for column in columns)

    def insert_into(self, table: str) -> str:
        return f"INSERT INTO {table}"

    def truncate(self, tables: Sequence[TableSchema]) -> Sequence[str]:
        if any(table.is_referenced for table in tables):
            return [f"DELETE FROM {table.sql_name}" for table in tables]
        return [f"TRUNCATE {', '.join(table.sql_name for table in tables)}"]

    def unused(self, column: Column) -> str | None:
        if column.kind in INTEGERS:
            return f"({INTEGERS[column.kind]} + s.lg_n)::{column.kind}"
        return "chr(1) || s.lg_n" if column.kind in ("text", "varchar", "bpchar") else None

    def fault(self, error: BaseException) -> KnownFault:
        if not isinstance(error, psycopg.Error):
            return faults.VIOLATION
        if error.sqlstate is not None:
            return faults.of_postgres(error.sqlstate)
        if isinstance(error, psycopg.DataError):
            return faults.VIOLATION
        return faults.GONE if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else faults.OTHER

    def value_bytes_max(self, connection: Connection) -> int | None:
        return None

    def violated(self, error: BaseException) -> Violated:
        if not isinstance(error, psycopg.Error):
            return Violated(reason=str(error))
        facts = error.diag
        words = [facts.message_primary or str(error), facts.message_detail or ""]
        return Violated(
            reason=" ".join(" ".join(words).split()),
            constraint=facts.constraint_name,
            table=facts.table_name,
            is_foreign_key=error.sqlstate in faults.POSTGRES_FOREIGN_KEY,
        )

    def move_sequences(self, cursor: Any, table: str) -> Sequence[MovedSequence]:
        return move_postgres(cursor, table, self.name)

    def is_repeated(self, error: BaseException) -> bool:
        return False  # PostgreSQL commits a definition and the position in one transaction


def address_of(dsn: str) -> str:
    """Returns an address for the driver, with which a connection that gets no answer is lost soon.

    Raises:
        InvalidRequest: The address cannot be read.
    """
    try:
        said = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # The driver's error quotes the address with its password.
        raise InvalidRequest(
            "the address of the database cannot be read; nothing was done",
            advice="postgresql://user:password@host:5432/database, with special characters percent-encoded",
        ) from None
    silence = {name: value for name, value in SILENCE.items() if name not in said}
    return psycopg.conninfo.make_conninfo(dsn, **silence)


def _same_as_parameter(name: str, column: Column) -> str:
    kind = column.kind.removesuffix(values.ARRAY)
    if kind == "json" or kind in values.NO_EQUALITY or kind in values.OTHER_EQUALITY:
        return f"{name}::text IS NOT DISTINCT FROM %s"
    return f"{name} IS NOT DISTINCT FROM %s"
