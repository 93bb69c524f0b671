"""Databases of each kind as targets: empty ones, scenarios in their dialects, and one way to run a sync and compare tables."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.changes import Changes, Scenario, table_text
from lakegate.demo.database_servers import Database, fresh_mariadb, fresh_postgres, fresh_sqlite
from lakegate.syncs.plan.change import Change
from lakegate.syncs.runner import AppliedBatch, SyncSettings, run
from tests.syncs.short_changes import Step, changes_of

KINDS = [
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("sqlite"),
]
SQLITE_LACKS = {"nulls-not-distinct"}
MARIADB_LACKS = {"nulls-not-distinct"}
REWRITES: dict[str, tuple[tuple[str, str], ...]] = {
    "sqlite": (
        (r" deferrable initially (deferred|immediate)", ""),
        (r"create unique index on t\(", "create unique index t_key on t("),
        (r"alter table t add constraint tuk unique\(uk\)", "create unique index tuk on t(uk)"),
    ),
    "mariadb": (
        (r" deferrable initially (deferred|immediate)", ""),
        (r"\btext\b", "varchar(100) character set utf8mb4 collate utf8mb4_nopad_bin"),
        (r"create unique index on t\(lower\(email\)\)",
         "alter table t add column email_key varchar(100) as (lower(email)) stored, add unique (email_key)"),
        (r"lower\(first\|\|' '\|\|last\)", "lower(concat(first, ' ', last))"),
        (r"pid int references p\(id\) on delete cascade",
         "pid int, foreign key (pid) references p(id) on delete cascade"),
    ),
}  # fmt: skip


def fresh(kind: str, request: pytest.FixtureRequest) -> Database:
    """An empty database of this kind."""
    if kind == "postgres":
        return fresh_postgres(request.getfixturevalue("postgres"))
    if kind == "mariadb":
        return fresh_mariadb(request.getfixturevalue("mariadb"))
    directory: Path = request.getfixturevalue("tmp_path")
    return fresh_sqlite(directory)


def lacks(kind: str) -> set[str]:
    """Scenarios whose tables this kind of database cannot have."""
    return {"postgres": set[str](), "mariadb": MARIADB_LACKS, "sqlite": SQLITE_LACKS}[kind]


def in_dialect(kind: str, sql: str) -> str:
    """A statement of a scenario, as this kind of database writes it."""
    for pattern, words in REWRITES.get(kind, ()):
        sql = re.sub(pattern, words, sql)
    return sql


def begin(database: Database, scenario: Scenario) -> list[Change]:
    """Makes the tables with their first rows; returns the changes."""
    database.execute(*(in_dialect(database.kind, sql) for sql in scenario.schema))
    made = {"full_name"}
    for table, rows in scenario.initial.items():
        fill(database, table, [{k: v for k, v in row.items() if k not in made} for row in rows])
    return [
        replace(change, sql=in_dialect(database.kind, change.sql)) if change.sql else change
        for change in scenario.changes
    ]


def crash_postgres(database: Database) -> None:
    """The server crashes and recovers, as when the system ends one of its processes; it lets connections in again."""
    import psycopg

    with psycopg.connect(database.dsn, autocommit=True) as other, psycopg.connect(database.dsn) as connection:
        # Its own process, by its id: PostgreSQL ends all others, too, and recovers from its log.
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        # Until it has noticed, it lets everybody in as before.
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                other.execute("SELECT pg_sleep(0.01)")
    for _ in range(1_000):
        try:
            return psycopg.connect(database.dsn).close()
        except psycopg.OperationalError:
            time.sleep(0.02)
    raise AssertionError("the server does not recover")


def fill(database: Database, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Inserts rows."""
    if not rows:
        return
    mark = "?" if database.kind == "sqlite" else "%s"
    connection = database.connect()
    try:
        cursor = connection.cursor()
        for row in rows:
            marks = ", ".join([mark] * len(row))
            cursor.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))
    finally:
        connection.close()


def sync(
    database: Database,
    changes: Sequence[Change],
    *,
    stream: str = "s",
    target_settings: dict[str, int] | None = None,
    **settings: Any,
) -> list[AppliedBatch]:
    """Carries the changes over with a target of its own."""
    target = database.target(**(target_settings or {}))
    settings = {"ddl": "apply", "tables": frozenset(change.table for change in changes), **settings}
    try:
        return list(run(Changes(changes), target, stream=stream, settings=SyncSettings(**settings)))
    finally:
        target.close()


def state(database: Database, tables: Sequence[str]) -> dict[str, list[str]]:
    """Whole tables as text."""
    return {
        table: table_text([{k: v for k, v in row.items() if k != "email_key"} for row in database.rows(table)])
        for table in tables
    }


def expected(scenario: Scenario) -> dict[str, list[str]]:
    """The scenario's end, as `state` shows it."""
    return {table: table_text(rows) for table, rows in scenario.final.items()}


WAYS = [("atomic", 1, 10_000), ("parallel", 2, 10_000), ("parallel", 8, 2)]


def check_case(
    kind: str,
    request: pytest.FixtureRequest,
    tables: Sequence[str],
    initial: dict[str, list[dict[str, Any]]],
    steps: Sequence[Step],
    final: dict[str, list[dict[str, Any]]],
    ways: Sequence[tuple[str, int, int]] = WAYS,
) -> AppliedBatch:
    """Applies the steps in each way and compares whole tables; returns the last batch of the first way."""
    first: list[AppliedBatch] = []
    for mode, parallelism, changes_max in ways:
        database = fresh(kind, request)
        database.execute(*tables)
        for table, rows in initial.items():
            fill(database, table, rows)
        done = sync(database, changes_of(*steps), mode=mode, parallelism=parallelism, changes_max=changes_max)
        first = first or done
        assert state(database, list(final)) == {table: table_text(rows) for table, rows in final.items()}, mode
    return first[-1]
