"""MariaDB and MySQL through PyMySQL, at READ COMMITTED; transactions that end in a deadlock are retried."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from lakegate.errors import InvalidRequest, MissingExtra
from lakegate.syncs.plan.apply_protocol import Violated
from lakegate.syncs.plan.table_schema import Column, TableSchema
from lakegate.syncs.plan.values import Misfit
from lakegate.syncs.targets import faults
from lakegate.syncs.targets import mariadb_values as values
from lakegate.syncs.targets.dialect import Connection, Named
from lakegate.syncs.targets.encode import encoded, rows_of
from lakegate.syncs.targets.faults import KnownFault
from lakegate.syncs.targets.mariadb_catalog import read_tables
from lakegate.syncs.targets.sequences import MovedSequence, move_mariadb

try:
    import pymysql
    import pymysql.cursors
    from pymysql.constants import CLIENT
except ImportError as error:
    raise MissingExtra("the MySQL driver is not installed", advice="pip install 'lakegate[mysql]'") from error

CONNECT_S = 10
MODES = ("disabled", "required", "verify_ca", "verify_identity")
"""Values of `ssl-mode`: no TLS; TLS; TLS with a verified certificate; the host name is verified too."""
OPTIONS = frozenset(
    {"unix_socket", "connect_timeout", "read_timeout", "write_timeout", "ssl_mode", "ssl_ca", "ssl_cert", "ssl_key"}
)
"""Options of a database address."""
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A connection counts as lost after about a minute without an answer from the other host."""
LOCK_WAIT_S = 10
"""How long a statement waits for a lock. Then the transaction is retried a limited number of times."""
SLOT_ROWS_MAX = 2_000
"""Above this size, concurrent transactions deadlock on neighbouring keys. Measured: docs/explanation/keys.md."""
STATEMENT_BYTES = 2_048
"""The part of a statement that is reserved for everything but its largest value."""
INTEGERS = {"smallint": -(1 << 15), "int": -(1 << 31), "bigint": -(1 << 63)}
TEXTS = frozenset({"char", "varchar", "text", "mediumtext", "longtext"})
LONG = frozenset({"text", "tinytext", "mediumtext", "longtext", "blob", "tinyblob", "mediumblob", "longblob"})
REPEATED = frozenset({1050, 1051, 1060, 1061, 1091, 1826})
"""Errors of a statement that was executed before: the object exists already, or is dropped already."""
TABLE = "ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    Decimal: "decimal(38,10)",
    str: "longtext",
    bytes: "longblob",
    date: "date",
    datetime: "datetime(6)",
    dict: "json",
    list: "json",
}
CONTROL = (
    "CREATE TABLE IF NOT EXISTS lakegate_stream (stream varchar(190) PRIMARY KEY, epoch bigint NOT NULL, "
    "last_batch bigint NOT NULL, position bigint NOT NULL, pending bigint, place longtext, "
    f"pending_place longtext) {TABLE}",
    "CREATE TABLE IF NOT EXISTS lakegate_slot (stream varchar(190), batch bigint, slot int, "
    f"PRIMARY KEY (stream, batch, slot)) {TABLE}",
    "CREATE TABLE IF NOT EXISTS lakegate_dead (stream varchar(190), batch bigint, n bigint, table_name text, "
    f"row_key longtext, image longtext, seq bigint, reason text, PRIMARY KEY (stream, batch, n)) {TABLE}",
    f"CREATE TABLE IF NOT EXISTS lakegate_delay (stream varchar(190) PRIMARY KEY, delays longtext) {TABLE}",
)
SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # A value that does not fit is an error and is never truncated. 0 is stored as 0, not as the next AUTO_INCREMENT.
    "SET SESSION sql_mode = "
    "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO'",
    "SET SESSION time_zone = '+00:00'",
)


def arguments(dsn: str) -> dict[str, Any]:
    """Returns the arguments of `pymysql.connect` for `mysql://user:password@host:port/database?ssl-mode=…`.

    Raises:
        InvalidRequest: The address is of another kind, or has an unknown option.
    """
    parts = urlsplit(dsn)
    if parts.scheme not in ("mysql", "mariadb"):
        raise InvalidRequest("not the address of a MySQL or MariaDB database; nothing was done", scheme=parts.scheme)
    try:
        port = parts.port or 3306
    except ValueError:
        raise InvalidRequest(
            "the address of the target cannot be read; nothing was done",
            advice="mysql://user:password@host:3306/database, with special characters percent-encoded",
        ) from None
    found: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or "") or None,
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")) or None,
        "charset": "utf8mb4",
        "connect_timeout": CONNECT_S,
    }
    said: dict[str, str] = {}
    for name, texts in parse_qs(parts.query, keep_blank_values=True).items():
        option = name.replace("-", "_").lower()
        option = {"socket": "unix_socket", "sslmode": "ssl_mode"}.get(option, option)
        if option not in OPTIONS:
            raise _refused(name, "it is not known")
        said[option] = texts[-1]
    if "unix_socket" in said:
        found["unix_socket"] = said["unix_socket"]
    for option in ("connect_timeout", "read_timeout", "write_timeout"):
        if option in said:
            if not said[option].isdigit() or not int(said[option]):
                raise _refused(option, "it is a whole number of seconds")
            found[option] = int(said[option])
    tls = {name: value for name, value in said.items() if name.startswith("ssl")}
    if not tls:
        return found  # encrypted if the server offers it
    context = _tls(tls)
    return {**found, "ssl_disabled": True} if context is None else {**found, "ssl": context}


def _tls(said: Mapping[str, str]) -> ssl.SSLContext | None:
    """Returns how to encrypt a connection; None for no encryption."""
    mode = said.get("ssl_mode", "verify_ca" if "ssl_ca" in said else "required").lower()
    if mode not in MODES:
        raise _refused("ssl-mode", f"it is one of {', '.join(MODES)}")
    if mode == "disabled":
        if set(said) - {"ssl_mode"}:
            raise _refused("ssl-mode", "with `disabled` there are no other options of TLS")
        return None
    try:
        context = ssl.create_default_context(cafile=said.get("ssl_ca"))
        if "ssl_cert" in said:
            context.load_cert_chain(said["ssl_cert"], said.get("ssl_key"))
    except (OSError, ssl.SSLError) as error:
        raise _refused("ssl-ca, ssl-cert or ssl-key", f"a file cannot be read: {error}") from error
    context.check_hostname = mode == "verify_identity"
    if mode == "required":
        context.verify_mode = ssl.CERT_NONE
    return context


def _refused(option: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"an option of the target's address cannot be used: {why}; nothing was done",
        advice=f"Known are: {', '.join(sorted(one.replace('_', '-') for one in OPTIONS))}",
        option=option,
    )


class _Connection(pymysql.connections.Connection):  # type: ignore[misc]  # the driver has no types
    """A connection that knows the maximum size of a statement and refuses weaker encryption than the address requires."""

    packet_bytes_max = 1 << 30
    must_be_encrypted = False

    def _request_authentication(self) -> None:
        # If the server, or an attacker in between, offers no TLS, the driver would send the login unencrypted.
        if self.must_be_encrypted and not self.server_capabilities & CLIENT.SSL:
            raise pymysql.OperationalError(2026, "the server does not offer TLS, which the address asks for")
        super()._request_authentication()


class _Cursor(pymysql.cursors.Cursor):  # type: ignore[misc]
    """Refuses a statement that is too large. The server would close the connection, which looks like a lost connection."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__(connection)
        self._bytes_max = connection.packet_bytes_max
        self.max_stmt_length = min(pymysql.cursors.Cursor.max_stmt_length, max(1, self._bytes_max - STATEMENT_BYTES))

    def _query(self, q: str | bytes) -> int:
        # A character has at most four bytes, so most statements need no exact measurement.
        if len(q) * 4 >= self._bytes_max:
            size = len(q.encode("utf-8", "surrogatepass") if isinstance(q, str) else q)
            if size + 1 >= self._bytes_max:
                raise pymysql.DataError(
                    1153, f"a row needs a statement of {size:,} bytes, and max_allowed_packet is {self._bytes_max:,}"
                )
        count: int = super()._query(q)
        return count


class MariadbDialect:
    """See `Dialect`."""

    errors: tuple[type[BaseException], ...] = (pymysql.Error, UnicodeEncodeError, Misfit)
    mark = "%s"
    share = " LOCK IN SHARE MODE"
    update = " FOR UPDATE"
    types: Mapping[type, str] = TYPES
    slot_rows_max: int | None = SLOT_ROWS_MAX
    writers_max: int | None = None
    ignores_case = False
    checks_rows_one_by_one = True
    has_network = True
    insert_words = ""

    def __init__(self, dsn: str, *, lock_wait_s: int = LOCK_WAIT_S) -> None:
        arguments(dsn)  # finds mistakes early; parsed again for each connection, as another process may open it
        self._dsn, self._lock_wait_s = dsn, lock_wait_s

    def connect(self) -> Connection:
        # FOUND_ROWS counts matched rows, not changed rows: an unchanged row does not count as skipped.
        said = arguments(self._dsn)
        # The server must answer within the connect timeout while the session begins; later statements may take long.
        read_s = said.pop("read_timeout", None)
        connection = _Connection(
            **said, autocommit=False, client_flag=CLIENT.FOUND_ROWS, cursorclass=_Cursor,
            read_timeout=said["connect_timeout"], defer_connect=True,
        )  # fmt: skip
        connection.must_be_encrypted = "ssl" in said
        connection.connect()
        if "unix_socket" not in said:
            connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    connection._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        with connection.cursor() as cursor:
            for statement in SESSION:
                cursor.execute(statement)
            cursor.execute("SET SESSION innodb_lock_wait_timeout = %s", (self._lock_wait_s,))
            # The timeout of table locks (LOCK TABLES, ALTER TABLE). The server's default is a day.
            cursor.execute("SET SESSION lock_wait_timeout = %s", (self._lock_wait_s,))
            cursor.execute("SELECT @@max_allowed_packet")
            connection.packet_bytes_max = int(cursor.fetchone()[0])
        connection.commit()
        connection._read_timeout = read_s
        return connection

    def cut(self, connection: Any) -> None:
        connection._sock.shutdown(socket.SHUT_RDWR)

    def name(self, text: str) -> str:
        # The driver has no composition of identifiers; this is the server's own rule.
        return "`" + text.replace("`", "``") + "`"

    def begin(self, connection: Any) -> None:
        connection.begin()

    def end_trial(self, connection: Connection) -> None:
        connection.rollback()  # each statement was checked when it was executed

    def snapshot(self, connection: Connection) -> None:
        connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.cursor().execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")

    def catalogue(self, connection: Connection, names: Iterable[str]) -> Mapping[str, TableSchema]:
        return read_tables(connection, names, self.name)

    def control(self) -> Sequence[str]:
        return CONTROL

    def stage_table(
        self, name: str, columns: Sequence[str], key: Sequence[Column], *, is_temporary: bool
    ) -> Sequence[str]:
        # Joins find staged rows by this key; a prefix of long columns is enough.
        parts = [self.name(column.name) + ("(64)" if column.kind in LONG else "") for column in key]
        kind = "TEMPORARY TABLE" if is_temporary else "TABLE"
        return [f"CREATE {kind} {name} ({', '.join(columns)}, KEY ({', '.join(parts)})) ENGINE=InnoDB"]

    def stage_tables(self, connection: Connection, prefix: str) -> Sequence[str]:
        cursor = connection.cursor()
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = database() "
            "AND left(table_name, char_length(%s)) = %s",
            (prefix, prefix),
        )
        return [row[0] for row in cursor.fetchall()]

    def empty(self, connection: Connection, table: str) -> None:
        connection.cursor().execute(f"DELETE FROM {table}")  # TRUNCATE would commit, and so release the fence

    def write(
        self,
        connection: Connection,
        table: str,
        columns: Sequence[str],
        types: Sequence[Column | None],
        rows: Iterable[Sequence[Any]],
    ) -> None:
        marks = ", ".join(["%s"] * len(columns))
        connection.cursor().executemany(
            f"INSERT INTO {table} ({', '.join(map(self.name, columns))}) VALUES ({marks})",
            list(rows_of(rows, types, values.plain, values.encode)),
        )

    def value(self, column: Column, value: Any) -> object:
        return value if value.__class__ in values.plain(column) else encoded(column, value, values.encode)

    def analyze(self, connection: Connection, table: str, rows: int) -> None:
        """Does nothing: InnoDB keeps its own statistics."""

    def delete(self, table: str, stage: str, key: Sequence[str], where: str) -> str:
        match = " AND ".join(f"t.{one} = s.{one}" for one in key)
        return f"DELETE t FROM {table} t JOIN {stage} s ON {match} WHERE {where}"

    def change(self, table: Named, other: Named, match: str, sets: Sequence[tuple[str, str]], where: str) -> str:
        changed = ", ".join(f"{table[1]}.{self.name(column)} = {value}" for column, value in sets)
        return f"UPDATE {table[0]} {table[1]} JOIN {other[0]} {other[1]} ON {match} SET {changed} WHERE {where}"

    def same(self, left: str, right: str) -> str:
        return f"{left} <=> {right}"

    def parameter(self, column: Column, value: object) -> object:
        return self.value(column, value)

    def stored_same(self, column: Column, left: str, right: str) -> str:
        if column.kind in TEXTS:
            left, right = f"CAST({left} AS BINARY)", f"CAST({right} AS BINARY)"
        return self.same(left, right)

    def one_copy(self, table: str, columns: Sequence[Column]) -> str:
        return f"DELETE FROM {table} WHERE {self.same_row(columns)} LIMIT 1"

    def same_row(self, columns: Sequence[Column]) -> str:
        return " AND ".join(f"{self.name(column.name)} <=> %s" for column in columns)

    def insert_into(self, table: str) -> str:
        return f"INSERT INTO {table}"

    def truncate(self, tables: Sequence[TableSchema]) -> Sequence[str]:
        return [f"DELETE FROM {table.sql_name}" for table in tables]

    def unused(self, column: Column) -> str | None:
        if column.kind in INTEGERS and "unsigned" not in column.type:
            return f"{INTEGERS[column.kind]} + s.lg_n"
        return "concat(char(1), s.lg_n)" if column.kind in TEXTS else None

    def fault(self, error: BaseException) -> KnownFault:
        code = error.args[0] if isinstance(error, pymysql.Error) and error.args else None
        if isinstance(code, int):
            return faults.of_mariadb(code, getattr(error, "sqlstate", None))
        # An error of the driver: a closed connection, or a value that it cannot write (NaN, a surrogate).
        return faults.GONE if isinstance(error, pymysql.InterfaceError) else faults.VIOLATION

    def value_bytes_max(self, connection: Connection) -> int | None:
        # Escaped, a byte may take two; and the statement contains more than the value.
        return (connection.packet_bytes_max - STATEMENT_BYTES) // 2 if isinstance(connection, _Connection) else None

    def violated(self, error: BaseException) -> Violated:
        words = str(error.args[1]) if len(error.args) > 1 and isinstance(error, pymysql.Error) else str(error)
        constraint = words.rpartition("for key ")[2].strip("'") if "for key " in words else None
        is_foreign_key = bool(error.args) and error.args[0] in faults.MARIADB_FOREIGN_KEY
        return Violated(reason=words, constraint=constraint, is_foreign_key=is_foreign_key)

    def move_sequences(self, cursor: Any, table: str) -> Sequence[MovedSequence]:
        return move_mariadb(cursor, table, self.name)

    def is_repeated(self, error: BaseException) -> bool:
        return bool(error.args) and error.args[0] in REPEATED
