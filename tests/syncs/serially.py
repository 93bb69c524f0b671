"""The oracle of histories: each change as one plain statement, in the order of the source, on a second database of the kind."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest

from harness.changes import table_text
from lakegate.demo.database_servers import Database
from tests.syncs.short_changes import Step, changes_of
from tests.syncs.target_databases import fresh, state, sync

WAYS = [("atomic", 1, 1), ("atomic", 1, 10_000), ("parallel", 4, 10_000)]


def serially(database: Database, steps: Sequence[Step], keys: Mapping[str, Sequence[str]]) -> None:
    """Executes (transaction, table, op, before, after) as plain SQL; the database's own actions do the rest."""
    mark = "?" if database.kind == "sqlite" else "%s"
    connection = database.connect()
    cursor = connection.cursor()
    if database.kind == "sqlite":
        cursor.execute("PRAGMA foreign_keys = ON")
    try:
        for _, transaction in itertools.groupby(steps, lambda step: step[0]):
            cursor.execute("BEGIN")
            for _, table, op, before, after in transaction:
                where = " AND ".join(f"{name} = {mark}" for name in keys[table])
                key = [(before or after or {})[name] for name in keys[table]]
                if op == "c":
                    marks = ", ".join([mark] * len(after))
                    sql = f"INSERT INTO {table} ({', '.join(after)}) VALUES ({marks})"
                    cursor.execute(sql, list(after.values()))
                elif op == "u":
                    sets = ", ".join(f"{name} = {mark}" for name in after)
                    cursor.execute(f"UPDATE {table} SET {sets} WHERE {where}", [*after.values(), *key])
                else:
                    cursor.execute(f"DELETE FROM {table} WHERE {where}", key)
            cursor.execute("COMMIT")
    finally:
        connection.close()


def check_serially(
    kind: str, request: pytest.FixtureRequest, ddl: Sequence[str], steps: Sequence[Step],
    keys: Mapping[str, Sequence[str]],
) -> dict[str, list[str]]:  # fmt: skip
    """Applies the steps in batches of one (SQLite) and of all; compares whole tables with the oracle's, and returns them."""
    oracle = fresh(kind, request)
    oracle.execute(*ddl)
    serially(oracle, steps, keys)
    wanted = {table: table_text(oracle.rows(table)) for table in keys}
    for mode, parallelism, changes_max in WAYS if kind == "sqlite" else WAYS[1:]:
        database = fresh(kind, request)
        database.execute(*ddl)
        sync(database, changes_of(*steps), mode=mode, parallelism=parallelism, changes_max=changes_max)
        assert state(database, list(keys)) == wanted, (mode, changes_max)
    return wanted
