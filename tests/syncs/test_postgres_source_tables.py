"""Tables of a PostgreSQL source: each kind is carried whole, or refused by its name before anything is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.proxy import Proxy
from lakegate.demo.database_servers import Database, fresh_postgres
from lakegate.errors import CheckpointMismatch, InvalidRequest
from lakegate.syncs.session import Carrier
from lakegate.syncs.sources import pgoutput
from lakegate.syncs.sources.postgres import PostgresChanges
from lakegate.syncs.sources.postgres_stream import Stream
from tests.syncs.postgres_source import applied, apply_with, same, session_of, slot_of, source_of

pytestmark = pytest.mark.postgres
PARTS = (
    "CREATE TABLE t (id int, region int, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)", "CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)",
)  # fmt: skip


@pytest.fixture
def source(postgres: str) -> Iterator[Database]:
    """An empty source."""
    with source_of(postgres) as database:
        yield database


@pytest.fixture
def target(postgres: str) -> Database:
    """An empty target."""
    return fresh_postgres(postgres)


def both(source: Database, target: Database, *statements: str) -> None:
    """Executes in the source and in the target."""
    for database in (source, target):
        database.execute(*statements)


def test_names_with_quotes_and_spaces(source: Database, target: Database) -> None:
    """Of tables and of columns."""
    both(source, target, 'CREATE TABLE "we ""T%s" ("Id ""1""" int PRIMARY KEY, "%s;--" text, "select" int)')
    source.execute("""INSERT INTO "we ""T%s" VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)""")
    with session_of(source, target, ['we "T%s']) as session:
        applied(session)
        source.execute(
            'UPDATE "we ""T%s" SET "select" = 9 WHERE "Id ""1""" = 1', 'DELETE FROM "we ""T%s" WHERE "Id ""1""" = 2',
            'UPDATE "we ""T%s" SET "Id ""1""" = 30 WHERE "Id ""1""" = 3',
        )  # fmt: skip
        applied(session)
    assert same(source, target, '"we ""T%s"')


def test_values_without_a_counterpart_in_python(source: Database, target: Database) -> None:
    """As values of keys, too: a row is found again by each of them."""
    both(
        source, target, "SET TIME ZONE 'UTC'",
        "CREATE TABLE t (n numeric, at timestamptz, d date, b bytea, u uuid, x int[], j jsonb, f float8, ok bool, "
        "PRIMARY KEY (n, at, d, b, u))",
    )  # fmt: skip
    keys = [
        ("'NaN'", "'infinity'", "'infinity'", "''"),
        ("'Infinity'", "'-infinity'", "'-infinity'", r"'\x00ff'"),
        ("1.10", "'0044-03-15 12:00:00+00 BC'", "'0044-03-15 BC'", r"'\x5c'"),
        ("-1e100", "'12026-01-02 03:04:05.000001+00'", "'12026-01-02'", "'text'"),
    ]
    uuid = "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"
    values = [
        f"({', '.join(key)}, {uuid}, '[0:1]={{1,NULL}}', '{{\"a\": 1.00}}', '-Infinity', {n % 2 == 0})"
        for n, key in enumerate(keys)
    ]
    source.execute(f"INSERT INTO t VALUES {', '.join(values[:2])}")
    with session_of(source, target, ["t"]) as session:
        applied(session)
        source.execute(f"INSERT INTO t VALUES {', '.join(values[2:])}")
        applied(session)
        assert target.query("SELECT t::text FROM t ORDER BY 1") == source.query("SELECT t::text FROM t ORDER BY 1")
        source.execute("UPDATE t SET j = 'null', x = '{}', f = 'NaN', ok = NULL")
        applied(session)
        assert target.query("SELECT t::text FROM t ORDER BY 1") == source.query("SELECT t::text FROM t ORDER BY 1")
        source.execute("UPDATE t SET n = n + 1 WHERE d < '2000-01-01'", "DELETE FROM t WHERE d > '2000-01-01'")
        applied(session)
        assert target.query("SELECT t::text FROM t ORDER BY 1") == source.query("SELECT t::text FROM t ORDER BY 1")
        assert [one.listed for one in session.verify(5).tables] == [()]
    assert target.query("SELECT t::text FROM t ORDER BY 1") == source.query("SELECT t::text FROM t ORDER BY 1")


def test_one_transaction_of_many_tables_is_one_batch(source: Database, target: Database) -> None:
    """No reader of the target sees a part of it."""
    tables = [f"t{n}" for n in range(12)]
    both(source, target, *(f"CREATE TABLE {one} (id int PRIMARY KEY, n int)" for one in tables))
    with session_of(source, target, tables, changes_max=3) as session:
        applied(session)
        with source.connect() as connection, connection.transaction():
            for one in tables:
                connection.execute(f"INSERT INTO {one} VALUES (1, 1), (2, 2)")
        assert [one.changes for one in applied(session)] == [24]
    assert same(source, target, *tables)


def test_generated_columns_are_computed_by_the_target(source: Database, target: Database) -> None:
    """The source does not send them."""
    both(source, target, "CREATE TABLE t (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)")
    source.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    with session_of(source, target, ["t"]) as session:
        applied(session)
        source.execute("UPDATE t SET n = 7 WHERE id = 1", "INSERT INTO t VALUES (3, 3)")
        applied(session)
    assert same(source, target, "t")


def test_a_large_value_of_the_key_that_did_not_change(source: Database, target: Database) -> None:
    """The server sends it with the row before only."""
    both(source, target, "CREATE TABLE t (tag text PRIMARY KEY, n int)", "ALTER TABLE t ALTER tag SET STORAGE EXTERNAL")
    source.execute("INSERT INTO t SELECT repeat('x', 2400) || g, 0 FROM generate_series(1, 3) g")
    with session_of(source, target, ["t"]) as session:
        applied(session)
        source.execute("UPDATE t SET n = 1 WHERE tag LIKE '%2'", "DELETE FROM t WHERE tag LIKE '%3'")
        applied(session)
    assert same(source, target, "t")


# ------------------------------------------------------------------------------------------------ partitions


def test_a_partitioned_table_goes_to_one_table(source: Database, target: Database) -> None:
    """A row that moves to another partition is the same row; a truncated partition is not sent, and a comparison finds it."""
    source.execute(*PARTS, "INSERT INTO t SELECT g, g % 2 + 1, 'n' FROM generate_series(1, 6) g")
    target.execute("CREATE TABLE t (id int, region int, note text, PRIMARY KEY (id, region))")
    with session_of(source, target, ["t"]) as session:
        applied(session)
        source.execute(
            "UPDATE t SET region = 2 WHERE id = 2", "DELETE FROM t1 WHERE id = 4",
            "CREATE TABLE t3 PARTITION OF t FOR VALUES IN (3)", "INSERT INTO t VALUES (9, 3, 'x')",
        )  # fmt: skip
        applied(session)
        assert same(source, target, "t")
        source.execute("TRUNCATE t2")
        applied(session)
        assert session.verify(5).differences == 4
        assert session.repair()[0] == 4
    with session_of(source, target, ["t"]) as session:
        source.execute("TRUNCATE t")
        applied(session)
    assert target.rows("t") == []


def test_a_publication_of_the_partitions_only_is_refused(source: Database, target: Database) -> None:
    """Then changes name a partition and not the table."""
    both(source, target, *PARTS)
    source.execute(f"CREATE PUBLICATION {slot_of(source)} FOR TABLE t")
    with session_of(source, target, ["t"]) as session, pytest.raises(InvalidRequest, match="partitions are") as refused:
        applied(session)
    assert "publish_via_partition_root" in str(refused.value)
    with session_of(source, target, ["t1", "t2"]) as session:
        applied(session)
        source.execute("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')")
        applied(session)
    assert same(source, target, "t1", "t2", "t")


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)"],
        ["CREATE TABLE t (id int NOT NULL)", "CREATE UNIQUE INDEX t_id ON t (id)"],
        ["CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"],
        [*PARTS, "ALTER TABLE t2 REPLICA IDENTITY NOTHING"],
        [*PARTS, "ALTER TABLE t REPLICA IDENTITY FULL"],
    ],
    ids=["deferrable", "unused index", "nothing", "a partition without", "partitions that differ"],
)
def test_an_unusable_replica_identity_is_refused(statements: list[str], source: Database, target: Database) -> None:
    """Before the table is published: then the source would refuse its application's updates."""
    both(source, target, *statements)
    with session_of(source, target, ["t"]) as session, pytest.raises(InvalidRequest, match="no replica identity"):
        applied(session)
    assert source.query(f"SELECT 1 FROM pg_publication WHERE pubname = '{slot_of(source)}'") == []


# ------------------------------------------------------------------------------------------------ parts of tables


def test_a_publication_of_some_rows_is_refused(source: Database, target: Database) -> None:
    """The target could not be compared."""
    both(source, target, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    source.execute(f"CREATE PUBLICATION {slot_of(source)} FOR TABLE t WHERE (id > 5), other")
    with session_of(source, target, ["t"]) as session, pytest.raises(InvalidRequest, match="only some rows"):
        applied(session)
    with session_of(source, target, ["other"]) as session:
        applied(session)


def test_a_publication_of_some_columns(source: Database, target: Database) -> None:
    """The others are neither loaded nor sent."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, secret text, n int)", "INSERT INTO t VALUES (1, 's', 1)")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.execute(f"CREATE PUBLICATION {slot_of(source)} FOR TABLE t (id, n)")
    with session_of(source, target, ["t"]) as session:
        applied(session)
        source.execute("INSERT INTO t VALUES (2, 's', 2)", "UPDATE t SET n = 3 WHERE id = 1")
        applied(session)
        assert session.verify(5).differences == 0
    assert target.query("SELECT id, n FROM t ORDER BY id") == [(1, 3), (2, 2)]


def test_several_source_tables_go_to_one(source: Database, target: Database, postgres: str) -> None:
    """If the sync says so; then the target is not compared with one of them only."""
    other = fresh_postgres(postgres)
    schemas = [one.dsn.rpartition("%3D")[2] for one in (source, other)]
    for n, database in enumerate((source, other)):
        database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"INSERT INTO t VALUES ({n})")
    target.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with session_of(source, target, [f"{one}.t" for one in schemas], '    tables: {"*.t": t}\n') as session:
        applied(session)
        source.execute("INSERT INTO t VALUES (10)")
        other.execute("INSERT INTO t VALUES (11)")
        applied(session)
        (table,) = session.verify(5).tables
        assert table.not_compared == "several source tables go to it"
    assert target.query("SELECT id FROM t ORDER BY id") == [(0,), (1,), (10,), (11,)]


# ------------------------------------------------------------------------------------------------ tables that change


def test_a_renamed_table_is_the_same_table(source: Database, target: Database) -> None:
    """While the sync runs; when it is started again, its file has to name the table."""
    both(source, target, "CREATE TABLE t (id int PRIMARY KEY)")
    with session_of(source, target, ["t"]) as session:
        carrier = Carrier(session, is_patient_from_the_start=False)
        apply_with(carrier)
        source.execute("ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (1)")
        apply_with(carrier)
        assert target.query("SELECT id FROM t") == [(1,)]
    source.execute("INSERT INTO u VALUES (2)")
    with session_of(source, target, ["t"]) as session, pytest.raises(InvalidRequest, match="no such table"):
        applied(session)
    with session_of(source, target, ["u"], "    tables: {u: t}\n") as session:
        applied(session)
        assert session.verify(5).differences == 0
    assert target.query("SELECT id FROM t ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("runs_meanwhile", [True, False])
def test_a_table_that_was_made_again_is_refused(runs_meanwhile: bool, source: Database, target: Database) -> None:
    """Its name is that of a table that was loaded, and its rows are not."""
    both(source, target, "CREATE TABLE t (id int PRIMARY KEY)")
    source.execute(f"CREATE PUBLICATION {slot_of(source)} FOR ALL TABLES")
    with contextlib.ExitStack() as sessions:
        carrier = Carrier(sessions.enter_context(session_of(source, target, ["t"])), is_patient_from_the_start=False)
        apply_with(carrier)
        if not runs_meanwhile:
            sessions.close()
            session = sessions.enter_context(session_of(source, target, ["t"]))
            carrier = Carrier(session, is_patient_from_the_start=False)
        source.execute("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        with pytest.raises(CheckpointMismatch, match="never loaded"):
            apply_with(carrier)


def test_a_replica_identity_that_no_longer_suffices_is_refused(source: Database, target: Database) -> None:
    """While the sync runs: otherwise a changed key would leave the row under its old key."""
    both(source, target, "CREATE TABLE t (id int PRIMARY KEY, tag int NOT NULL UNIQUE)")
    source.execute("INSERT INTO t VALUES (1, 1)")
    with session_of(source, target, ["t"]) as session:
        carrier = Carrier(session, is_patient_from_the_start=False)
        apply_with(carrier)
        source.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_tag_key", "UPDATE t SET id = 2")
        with pytest.raises(InvalidRequest, match="lacks columns that tell"):
            apply_with(carrier)
    assert target.query("SELECT id FROM t") == [(1,)]


def test_a_commit_after_the_slot_is_not_in_the_snapshot(source: Database, target: Database) -> None:
    """It is in the log: in both of them it would come twice, and in none of them it would be lost."""
    both(source, target, "CREATE TABLE t (id int)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (1)")
    with session_of(source, target, ["t"]) as session:
        changes = session._source
        assert isinstance(changes, PostgresChanges)
        changes.begin()
        server = changes.server
        with server.connected() as connection:
            tables = server.checked(connection)
        with server.snapshot(tables, has_slot=True) as (connection, point, _):
            source.execute("INSERT INTO t VALUES (2)")
            assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]
        with server.connected(replicates=True) as connection:
            server.start(connection, point, takes_over=False)
            stream = Stream(connection, point)
            sent = [pgoutput.decoded(data) for data in iter(lambda: stream.read(2, 1 << 62), None)]
        assert [one.new for one in sent if isinstance(one, pgoutput.RowSent)] == [("2",)]


def test_a_table_is_not_rewritten_while_it_is_loaded(source: Database, target: Database) -> None:
    """In a snapshot from before, a table that was rewritten has no rows."""
    both(source, target, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    source.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    with session_of(source, target, ["a", "b"]) as session:
        changes = session._source
        assert isinstance(changes, PostgresChanges)
        groups = changes.transactions(-1, changes.begin())
        next(groups)
        for name in ("a", "b"):
            with pytest.raises(Exception, match="lock timeout"):
                source.execute("SET lock_timeout = '100ms'", f"ALTER TABLE {name} ALTER id TYPE bigint")
        assert [one.after for group in groups for one in group if one.op == "c"] == [{"id": 1}, {"id": 1}]
        changes.close()


# ------------------------------------------------------------------------------------------------ the connection


def test_an_idle_sync_keeps_its_connection(source: Database, target: Database) -> None:
    """The server ends a reader that does not answer within `wal_sender_timeout`."""
    both(source, target, "CREATE TABLE t (id int PRIMARY KEY)")
    dsn = source.dsn + "%20-cwal_sender_timeout%3D1s"
    reader = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{slot_of(source)}'"
    with session_of(source, target, ["t"], dsn=dsn) as session:
        carrier = Carrier(session, is_patient_from_the_start=False)
        apply_with(carrier)
        (began,) = source.query(reader)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            carrier.has_news()
            time.sleep(0.05)
        assert source.query(reader) == [began]
        source.execute("INSERT INTO t VALUES (1)")
        apply_with(carrier)
        assert source.query(reader) == [began]
    assert same(source, target, "t")


def test_a_cut_network_loses_and_doubles_nothing(source: Database, target: Database) -> None:
    """The sync waits and goes on where the target is. Without a key, a doubled row would show."""
    both(source, target, "CREATE TABLE t (id int)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (0)")
    socket = Path(source.dsn.partition("host=")[2].partition("&")[0]) / ".s.PGSQL.5432"
    with Proxy(socket) as proxy:
        options = source.dsn.partition("options=")[2]
        dsn = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?options={options}"
        with session_of(source, target, ["t"], dsn=dsn) as session:
            carrier = Carrier(session, is_patient_from_the_start=False)
            apply_with(carrier)
            for n in range(1, 4):
                source.execute(f"INSERT INTO t VALUES ({n})")
                proxy.be("refuse")
                assert apply_with(carrier) == []
                assert carrier.is_waiting
                source.execute(f"INSERT INTO t VALUES ({n * 10})")
                proxy.be("pass")
                until = time.monotonic() + 30
                while carrier.is_waiting and time.monotonic() < until:
                    apply_with(carrier)
                    time.sleep(0.05)
                apply_with(carrier)
                assert same(source, target, "t")
