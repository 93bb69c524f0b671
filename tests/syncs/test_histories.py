"""Random histories with foreign keys: each target ends as its source, in any mode, batch size and way of telling."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

import pytest

from lakegate.demo.database_servers import Database
from tests.syncs.histories import COLUMNS, Family, as_sent, history
from tests.syncs.target_databases import KINDS, fresh, state, sync

FAMILIES: list[Family] = ["unlogged", "logged", "deferred"]


def refusals(kind: str) -> tuple[type[BaseException], ...]:
    """Returns the errors that a source's driver raises for a statement that its keys forbid."""
    if kind == "sqlite":
        return (sqlite3.IntegrityError,)
    if kind == "postgres":
        import psycopg

        return (psycopg.IntegrityError,)
    import pymysql

    return (pymysql.IntegrityError,)


def drop(database: Database) -> None:
    """A server stays small."""
    if database.kind == "postgres":
        database.execute(f"DROP SCHEMA {database.dsn.rpartition('%3D')[2]} CASCADE")
    elif database.kind == "mariadb":
        ((name,),) = database.query("SELECT database()")
        database.execute(f"DROP DATABASE {name}")


def check(seed: int, kind: str, family: Family, request: pytest.FixtureRequest) -> None:
    """Carries one history over in two ways, and compares."""
    source = fresh(kind, request)
    found = history(seed, kind, family, source, refusals(kind))
    chance = random.Random(seed)
    ways: list[dict[str, Any]] = [
        {"mode": "atomic", "changes_max": chance.choice([1, 3, 10_000])},
        {"mode": "parallel", "parallelism": chance.choice([2, 8]), "changes_max": chance.choice([1, 3, 10_000]),
         "plan": chance.choice(["staged", "staged", "conflict_queue"])},
    ]  # fmt: skip
    for way in ways:
        how = chance.choice(["whole", "key", "changed"] if family != "deferred" else ["whole", "changed"])
        changes = as_sent(found.changes, how)
        database = fresh(kind, request)
        database.execute(*found.ddl)
        done = sync(database, changes, **way)
        words = (seed, family, how, way, found.ddl)
        assert state(database, list(COLUMNS)) == found.final, words
        assert not any(one.complete and one.complete.retried_alone for one in done), words
        drop(database)
    drop(source)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_history_with_foreign_keys_ends_as_at_its_source(
    kind: str, family: Family, request: pytest.FixtureRequest
) -> None:
    """Some histories; many more of them in `test_many_histories_with_foreign_keys`."""
    for seed in range(12 if kind == "sqlite" else 1):
        check(seed, kind, family, request)


@pytest.mark.matrix
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_many_histories_with_foreign_keys(kind: str, family: Family, request: pytest.FixtureRequest) -> None:
    """Two ways each: 2,000 runs on SQLite, 200 on each server."""
    for seed in range(1_000, 2_000 if kind == "sqlite" else 1_100):
        check(seed, kind, family, request)
