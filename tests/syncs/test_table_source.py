"""A Delta table as the source of a sync: its commits in order, its snapshot first, and what cannot be read any more."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakegate.config import Pipeline, parse
from lakegate.delta.local_files import LocalLog
from lakegate.demo.database_servers import Database, fresh_postgres, fresh_sqlite
from lakegate.errors import CheckpointMismatch, InvalidRequest
from lakegate.syncs.session import Carrier, SyncSession
from lakegate.syncs.sources import delta_cdf
from lakegate.syncs.targets import sql_target as sql_target
from tests.syncs.commits import Ended, counted

FEED = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"


class Lake:
    """A table, and a database that is kept in step with it."""

    def __init__(self, session: SparkSession, root: Path, database: Database, dsn: str) -> None:
        self.session, self.root, self.database, self.dsn = session, root, database, dsn
        self.path = root / "lake"

    def sql(self, statement: str) -> None:
        """On the table, which is named `@`."""
        self.session.sql(statement.replace("@", f"delta.`{self.path}`")).collect()

    def pipeline(self, keys: str = "") -> Pipeline:
        """The file."""
        text = f"name: p\ntables: {{people: {{path: '{self.path}'}}}}\nsync: {{crm: {{from: people, to: '{self.dsn}'{keys}}}}}\n"
        return parse(text, origin="lakegate.yml", base_dir=str(self.root), environ={})

    def opened(self, keys: str = "") -> SyncSession:
        """The sync."""
        pipeline = self.pipeline(keys)
        return SyncSession(pipeline, pipeline.sync("crm"), spark=self.session)

    def carry(self, keys: str = "") -> list[int]:
        """Applies what is there; the positions of the batches."""
        with self.opened(keys) as sync:
            return [one.through for one in next(sync.passes())]

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns the rows of the target."""
        return self.database.query("SELECT id, email FROM people ORDER BY id")


@pytest.fixture
def lake(session: SparkSession, tmp_path: Path) -> Lake:
    """Makes a lake with an SQLite target that has its table."""
    database = fresh_sqlite(tmp_path)
    database.execute("CREATE TABLE people (id int PRIMARY KEY, email varchar(50) NOT NULL UNIQUE)")
    return Lake(session, tmp_path, database, f"sqlite:{next(tmp_path.glob('*.db'))}")


def test_a_table_is_loaded_and_then_followed(lake: Lake) -> None:
    """Version by version; hand-overs of a unique value inside a commit and across them; commits without rows move on, too."""
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    assert lake.carry() == [1]
    assert lake.rows() == [(1, "a"), (2, "b"), (3, "c")]
    assert lake.carry() == []
    lake.sql("UPDATE @ SET email = CASE id WHEN 1 THEN 'b' ELSE 'a' END WHERE id < 3")
    lake.sql("DELETE FROM @ WHERE id = 3")
    lake.sql("INSERT INTO @ VALUES (4, 'c')")
    lake.sql("OPTIMIZE @")
    assert lake.carry() == [5]
    assert lake.rows() == [(1, "b"), (2, "a"), (4, "c")]
    lake.database.execute("UPDATE people SET email = 'z' WHERE id = 4")
    with lake.opened() as sync:
        assert [(one.at_source, one.different) for one in sync.verify(5).tables] == [(3, 1)]
    lake.sql("ALTER TABLE @ ADD COLUMN phone STRING")
    lake.sql("UPDATE @ SET phone = '1' WHERE id = 4")
    with pytest.raises(
        InvalidRequest, match=r"a column that the target table does not have.*table=people column=phone"
    ):
        lake.carry()
    assert lake.carry(", on_schema_change: ignore") == [7]
    lake.sql("UPDATE @ SET phone = '2' WHERE id = 1")
    assert lake.carry(", on_schema_change: add_columns") == [8]
    assert lake.database.query("SELECT id, phone FROM people ORDER BY id") == [(1, "2"), (2, None), (4, None)]
    lake.sql("DELETE FROM @")
    assert lake.carry() == [9]
    lake.database.execute("INSERT INTO people (id, email) VALUES (9, 'x')")
    with lake.opened() as sync:  # a table without rows has one that is too many
        assert [(one.at_source, one.extra) for one in sync.verify(5).tables] == [(0, 1)]


def test_an_idle_sync_notices_a_commit_before_its_next_pass(lake: Lake) -> None:
    """A table on a local disk is asked every 100 ms, unless the file says otherwise; a pass that misses nothing follows."""
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (1, 'a')")
    with lake.opened(", poll: 2s") as sync:
        assert sync.poll_s == 2
    with lake.opened() as sync:
        assert sync.poll_s == 0.1
        carrier = Carrier(sync, is_patient_from_the_start=True)
        assert [one.through for one in carrier.carry()] == [1]
        assert not carrier.has_news()
        lake.sql("INSERT INTO @ VALUES (2, 'b')")
        assert carrier.has_news()
        passed = carrier.carry()
        assert next(passed).through == 2
        lake.sql("INSERT INTO @ VALUES (3, 'c')")  # within the pass, which may not have seen it
        assert list(passed) == []
        assert carrier.has_news()
        assert [one.through for one in carrier.carry()] == [3]
        assert not carrier.has_news()


def test_the_delay_of_a_table_begins_with_its_commits(lake: Lake) -> None:
    """By the time in the commit; a commit that changes no row leaves nothing missing."""
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (1, 'a')")
    with lake.opened() as sync:
        assert sync.delay().now_ms is None  # nothing was loaded yet
    assert lake.carry() == [1]
    lake.sql("INSERT INTO @ VALUES (2, 'b'), (3, 'c')")
    lake.sql("INSERT INTO @ VALUES (4, 'd')")
    times = [one.timestamp_ms for one in LocalLog(lake.path).commits(1)]
    before_ms = time.time_ns() // 1_000_000 - times[0]
    with lake.opened() as sync:
        now_ms = sync.delay().now_ms
        assert now_ms is not None
        assert before_ms <= now_ms <= time.time_ns() // 1_000_000 - times[0]
        commits = [one.commits for one in next(sync.passes())]
        assert {at_ms: count for one in commits for at_ms, count in one.items()} == {times[0]: 2, times[1]: 1}
        assert sync.delay().now_ms == 0
    lake.sql("OPTIMIZE @")
    with lake.opened() as sync:
        assert (sync.delay().now_ms, sync.delay().changes) == (0, 3)


def test_a_load_that_was_killed_begins_again_with_the_same_version(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a part are written over; a row that left the table meanwhile leaves the target with the feed."""
    monkeypatch.setattr("lakegate.syncs.sources.delta_cdf.LOAD_ROWS", 2)
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ SELECT CAST(id AS INT), concat('m', id) FROM range(7)")
    with lake.opened() as sync:
        sync._settings = type(sync._settings)(changes_max=3)
        batches = next(sync.passes())
        assert next(batches).through == -1
        assert (sync.standing().position, sync.standing().last_batch) == (None, 1)
    assert len(lake.rows()) == 2
    lake.sql("DELETE FROM @ WHERE id = 0")
    lake.sql("UPDATE @ SET email = concat('n', id)")
    assert lake.carry()[-1] == 3
    assert lake.rows() == [(n, f"n{n}") for n in range(1, 7)]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("whole", [0, 1])
def test_a_load_that_was_killed_within_a_batch_is_cut_as_any_other(
    whole: int, session: SparkSession, tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With parts of its first batch or of its last in: it is of the version that it began with, and in batches again."""
    monkeypatch.setattr("lakegate.syncs.sources.delta_cdf.LOAD_ROWS", 2)
    database = fresh_postgres(postgres)
    database.execute("CREATE TABLE people (id int PRIMARY KEY, email varchar(50) NOT NULL UNIQUE)")
    lake = Lake(session, tmp_path, database, database.dsn)
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ SELECT CAST(id AS INT), concat('m', id) FROM range(7)")
    is_over = []

    def on_commit(number: int, when: str) -> None:
        parts = "SELECT 1 FROM lakegate_slot JOIN lakegate_stream USING (stream)"
        if is_over or (when == "after" and number > 2 and database.query(f"{parts} WHERE last_batch = {whole}")):
            is_over.append(number)
            raise Ended

    def carried() -> list[tuple[int, int]]:
        with lake.opened(", mode: parallel") as sync:
            sync._settings = replace(sync._settings, changes_max=4)
            return [(one.changes, one.through) for one in next(sync.passes())]

    with counted(on_commit), contextlib.suppress(Ended):
        carried()
    assert lake.rows()
    lake.sql("DELETE FROM @ WHERE id IN (0, 6)")
    lake.sql("UPDATE @ SET email = concat('m', 6 - id)")
    assert carried()[:3] == [(4, -1), (3, 1), (2, 2)]
    assert lake.rows() == [(n, f"m{6 - n}") for n in range(1, 6)]


def test_a_load_that_an_earlier_version_began_is_refused(lake: Lake) -> None:
    """It did not note of what version the rows are that it left behind."""
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (1, 'a')")
    lake.carry(", start: latest")
    begun = "position = -1, last_batch = 0, place = NULL, pending = 1, pending_place = place"
    lake.database.execute(f"UPDATE lakegate_stream SET {begun}")
    with pytest.raises(CheckpointMismatch, match=r"an earlier version of Lakegate began.*lakegate sync resync"):
        lake.carry()
    assert lake.rows() == []


def test_where_a_sync_begins(lake: Lake) -> None:
    """A load needs an empty table; `latest` is noted at once; a version brings the changes from there on."""
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (1, 'a')")
    lake.database.execute("INSERT INTO people VALUES (9, 'z')")
    with pytest.raises(InvalidRequest, match=r"the target table has rows.*lakegate sync resync crm"):
        lake.carry()
    assert lake.carry(", start: latest") == [1]
    lake.sql("INSERT INTO @ VALUES (2, 'b')")
    assert lake.carry(", start: latest") == [2]
    assert lake.rows() == [(2, "b"), (9, "z")]
    lake.database.execute("DELETE FROM people", "DROP TABLE lakegate_stream")
    assert lake.carry(", start: {version: 2}") == [2]
    assert lake.rows() == [(2, "b")]


def test_resync_makes_the_target_equal_and_goes_on(lake: Lake) -> None:
    """Whatever the target had: rows that the table lacks go, values that rows hold from before are in nobody's way."""
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    lake.database.execute("INSERT INTO people VALUES (1, 'b'), (2, 'a'), (8, 'c')")
    with lake.opened() as sync:
        (done,) = sync.resync()
    assert (done.through, done.changes) == (1, 3)
    assert lake.rows() == [(1, "a"), (2, "b"), (3, "c")]
    lake.sql("DELETE FROM @ WHERE id = 2")
    assert lake.carry() == [2]
    assert lake.rows() == [(1, "a"), (3, "c")]
    shutil.rmtree(lake.path)
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (7, 'c')")
    with pytest.raises(CheckpointMismatch, match=r"it was recreated.*lakegate sync resync"):
        lake.carry()
    with lake.opened() as sync:
        sync.resync()
    assert lake.rows() == [(7, "c")]


@pytest.mark.matrix
@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_large_commit_is_staged_by_the_executors(
    session: SparkSession, tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Commits before and behind it come one by one; unique values go round within it; moments and amounts are as they were."""
    monkeypatch.setattr(delta_cdf, "MANY_ROWS", 500)
    monkeypatch.setattr(delta_cdf, "MANY_BYTES", 1 << 13)
    monkeypatch.setattr(sql_target, "SPREAD_ROWS", 1)
    database = fresh_postgres(postgres)
    lake = Lake(session, tmp_path, database, database.dsn)
    database.execute(
        "CREATE TABLE people (id bigint PRIMARY KEY, email text UNIQUE, n numeric(20, 2), at timestamptz NOT NULL)"
    )
    lake.sql(f"CREATE TABLE @ (id BIGINT, email STRING, n DECIMAL(20, 2), at TIMESTAMP) USING delta {FEED}")
    rows = "id, concat('m', id) AS email, CAST(id AS DECIMAL(20, 2)) / 3 AS n, timestamp_micros(id * 1000001) AS at"
    keys = f", start: {{version: 1}}, mode: {mode}"
    lake.sql(f"INSERT INTO @ SELECT {rows} FROM range(3)")
    lake.sql(f"INSERT INTO @ SELECT {rows} FROM range(3, 2000)")
    lake.sql("UPDATE @ SET email = concat('m', (id + 1) % 2000)")
    lake.sql("DELETE FROM @ WHERE id % 500 = 0")
    with lake.opened(keys) as sync:
        done = list(next(sync.passes()))
    assert [(one.through, one.changes) for one in done] == [(0, 0), (1, 3), (2, 1997), (3, 4000), (4, 4)][-len(done) :]
    assert lake.rows() == [(id, f"m{(id + 1) % 2000}") for id in range(2000) if id % 500]
    with lake.opened(keys) as sync:
        assert [(one.at_source, one.differences) for one in sync.verify(5).tables] == [(1996, 0)]
    database.execute("UPDATE people SET email = NULL", "DELETE FROM people WHERE id > 1000")
    with lake.opened(keys) as sync:
        sync.resync()
        assert [(one.at_source, one.differences) for one in sync.verify(5).tables] == [(1996, 0)]


@pytest.mark.slow
def test_a_feed_that_is_not_there_is_an_error_that_says_what_to_do(lake: Lake) -> None:
    """Not recorded, or vacuumed away: nothing is skipped; the target stays at the last version that was whole."""
    lake.sql("CREATE TABLE @ (id INT, email STRING) USING delta")
    lake.sql("INSERT INTO @ VALUES (1, 'a')")
    assert lake.carry() == [1]
    lake.sql("INSERT INTO @ VALUES (2, 'b')")
    with pytest.raises(InvalidRequest, match=r"does not record its changes.*delta.enableChangeDataFeed"):
        lake.carry()
    lake.sql("ALTER TABLE @ SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    with lake.opened() as sync:
        sync.resync()
    lake.sql("UPDATE @ SET email = concat(email, '!')")
    for folder in lake.path.glob("_change_data"):
        shutil.rmtree(folder)
    lake.sql("INSERT INTO @ VALUES (3, 'c')")
    with pytest.raises(CheckpointMismatch, match=r"can no longer be read.*lakegate sync resync"):
        lake.carry()
    assert lake.rows() == [(1, "a"), (2, "b")]
    with lake.opened() as sync:
        sync.resync()
    lake.sql("ALTER TABLE @ SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 1 second')")
    lake.sql("UPDATE @ SET email = concat(email, '?')")
    time.sleep(1.1)  # a sync that was away for longer than that
    with pytest.raises(CheckpointMismatch, match=r"older than the table keeps.*lakegate sync resync"):
        lake.carry()
    assert lake.rows() == [(1, "a!"), (2, "b!"), (3, "c")]


@pytest.mark.postgres
def test_values_of_every_type_arrive_as_they_are(session: SparkSession, tmp_path: Path, postgres: str) -> None:
    """Moments are the same instant whatever zone the session has; amounts are exact; nested values are JSON."""
    database = fresh_postgres(postgres)
    lake = Lake(session, tmp_path, database, database.dsn)
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    lake.sql(
        "CREATE TABLE @ (id INT, n DECIMAL(38, 3), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, b BINARY, flag BOOLEAN, "
        f"x DOUBLE, nested STRUCT<a: INT, l: ARRAY<STRING>>) USING delta {FEED}"
    )
    lake.sql(
        "INSERT INTO @ VALUES (1, -12345678901234567890123456789012345.678, timestamp'2026-03-29 02:30:00.123456 UTC', "
        "timestamp_ntz'2026-03-29 02:30:00', date'2026-03-29', X'00FF', true, 0.1, struct(1, array('é', null)))"
    )
    database.execute(
        "CREATE TABLE people (id int PRIMARY KEY, n numeric, at timestamptz, local timestamp, day date, b bytea, "
        "flag boolean, x double precision, nested jsonb)"
    )
    assert lake.carry() == [1]
    lake.sql("UPDATE @ SET n = n + 1")
    assert lake.carry() == [2]
    ((id, n, at, local, day, b, flag, x, nested),) = database.query("SELECT * FROM people")
    assert (id, n, b, flag, x, nested) == (
        1, Decimal("-12345678901234567890123456789012344.678"), b"\x00\xff", True, 0.1, {"a": 1, "l": ["é", None]},
    )  # fmt: skip
    assert at == datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=UTC)
    assert (local, str(day)) == (datetime(2026, 3, 29, 2, 30), "2026-03-29")


def test_the_key_is_named_where_the_target_has_another(lake: Lake) -> None:
    """It identifies rows; the target's own primary key is one more key in which rows may collide."""
    lake.database.execute(
        "DROP TABLE people", "CREATE TABLE people (n integer PRIMARY KEY AUTOINCREMENT, id int NOT NULL, email text)"
    )
    lake.sql(f"CREATE TABLE @ (id INT, email STRING) USING delta {FEED}")
    lake.sql("INSERT INTO @ VALUES (1, 'a'), (2, 'b')")
    assert lake.carry(", key: [id]") == [1]
    lake.sql("UPDATE @ SET email = 'x' WHERE id = 2")
    assert lake.carry(", key: [id]") == [2]
    assert lake.rows() == [(1, "a"), (2, "x")]
    lake.sql("DELETE FROM @ WHERE id = 2")
    with pytest.raises(InvalidRequest, match=r"does not have a column of `key`.*missing=nope"):
        lake.carry(", key: [nope]")
