"""Every target keeps the contract of the port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.conformance.target_database import OpenTarget, Rows, TargetDatabaseConformance
from harness.memory_target import MemoryTarget, Storage, table
from lakegate.demo.database_servers import Database, fresh_mariadb, fresh_postgres, fresh_sqlite
from lakegate.errors import Fenced
from lakegate.syncs.plan.apply_protocol import SyncProgress
from lakegate.syncs.ports import TargetDatabase

TABLE = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE)"
FIRST = "INSERT INTO t (id, uk) VALUES (1, 'x'), (2, 'y')"


class TestMemory(TargetDatabaseConformance):
    """The one that the exploration uses."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Rows that outlive handles."""
        storage = Storage({"t": table("t", ["id"], [["uk"]])})
        for id, uk in ((1, "x"), (2, "y")):
            storage.insert("t", {"id": id, "uk": uk})
        return storage

    @pytest.fixture
    def open_target(self, storage: Storage) -> OpenTarget:
        return lambda: MemoryTarget(storage)

    @pytest.fixture
    def rows(self, storage: Storage) -> Rows:
        return lambda: {row["id"]: row["uk"] for row in storage.rows["t"].values()}


class SqlConformance(TargetDatabaseConformance):
    """The suite of the SQL targets: makes the table in the empty database that the fixture `database` gives."""

    @pytest.fixture
    def open_target(self, database: Database) -> Iterator[OpenTarget]:
        database.execute(TABLE, FIRST)
        opened: list[TargetDatabase] = []

        def make() -> TargetDatabase:
            opened.append(database.target())
            return opened[-1]

        yield make
        for target in opened:
            target.close()

    @pytest.fixture
    def rows(self, database: Database) -> Rows:
        return lambda: {row["id"]: row["uk"] for row in database.rows("t")}

    def test_a_stream_begins_before_the_first_change(self, open_target: OpenTarget) -> None:
        """Epoch 1, no batch; every opening is a later epoch; one may be named, but not an older one."""
        target = open_target()
        assert target.open_stream("a") == SyncProgress(epoch=1, last_batch=0, position=-1)
        assert target.open_stream("a").epoch == 2
        assert target.open_stream("a", epoch=9).epoch == 9
        assert target.open_stream("b").epoch == 1
        with pytest.raises(Fenced):
            target.open_stream("a", epoch=8)


@pytest.mark.postgres
class TestPostgres(SqlConformance):
    """PostgreSQL."""

    @pytest.fixture
    def database(self, postgres: str) -> Database:
        return fresh_postgres(postgres)


@pytest.mark.mariadb
class TestMariadb(SqlConformance):
    """MariaDB."""

    @pytest.fixture
    def database(self, mariadb: str) -> Database:
        return fresh_mariadb(mariadb)


class TestSqlite(SqlConformance):
    """SQLite."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> Database:
        return fresh_sqlite(tmp_path)
