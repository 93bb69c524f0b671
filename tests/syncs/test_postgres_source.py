"""PostgreSQL as a source of its own: a snapshot, then its log; nothing is lost or doubled, whatever ends the sync."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from lakegate.demo.database_servers import Database, fresh_postgres
from lakegate.errors import CheckpointMismatch, InvalidRequest, Unavailable
from lakegate.syncs.session import Carrier
from lakegate.syncs.sources.postgres import MARK_BYTES
from tests.syncs.postgres_source import (
    applied,
    apply_with,
    confirmed,
    rows,
    same,
    session_of,
    slot_of,
    source_of,
)
from tests.syncs.target_databases import KINDS, fresh

pytestmark = pytest.mark.postgres
PEOPLE = "CREATE TABLE people (id int PRIMARY KEY, email varchar(40) UNIQUE, firm int, note text)"
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, person int, amount int)"


@pytest.fixture
def source(postgres: str) -> Iterator[Database]:
    """A source with two tables, whose unique key is checked at commits."""
    with source_of(postgres) as database:
        database.execute(
            PEOPLE.replace("UNIQUE", "UNIQUE DEFERRABLE INITIALLY DEFERRED"),
            "CREATE TABLE orders (id int PRIMARY KEY, person int REFERENCES people, amount int)",
            "INSERT INTO people SELECT g, 'm' || g, g % 7, 'n' FROM generate_series(1, 200) g",
            "INSERT INTO orders SELECT g, g, g FROM generate_series(1, 50) g",
        )
        yield database


@pytest.fixture
def target(postgres: str) -> Database:
    """A target with the same tables."""
    database = fresh_postgres(postgres)
    database.execute(PEOPLE, "CREATE TABLE orders (id int PRIMARY KEY, person int REFERENCES people, amount int)")
    return database


TABLES = ["orders", "people"]


def change_at_random(source: Database, chance: random.Random, transactions: int) -> None:
    """Transactions that insert, delete, move keys, and hand unique values over."""
    with source.connect() as connection:
        for _ in range(transactions):
            a, b = chance.sample(range(1, 220), 2)
            with connection.transaction():
                for _ in range(chance.randint(1, 3)):
                    match chance.randrange(6):
                        case 0:
                            connection.execute(
                                "INSERT INTO people VALUES (%s, %s, 1, %s) ON CONFLICT (id) DO UPDATE SET firm = people.firm + 1",
                                (a, f"m{a}x{chance.random()}", "l" * chance.choice([1, 9_000])),
                            )
                        case 1:
                            connection.execute("DELETE FROM orders WHERE person = %s", (a,))
                            connection.execute("DELETE FROM people WHERE id = %s", (a,))
                        case 2 | 3:  # a swap
                            connection.execute(
                                "UPDATE people p SET email = q.email FROM people q "
                                "WHERE (p.id, q.id) IN ((%s, %s), (%s, %s))", (a, b, b, a),
                            )  # fmt: skip
                        case 4:
                            connection.execute(
                                "UPDATE orders SET id = id + 1000 WHERE id = %s AND NOT EXISTS (SELECT FROM orders WHERE id = %s)",
                                (a, a + 1000),
                            )
                        case _:
                            connection.execute("UPDATE people SET firm = firm + 1 WHERE id < %s", (a,))


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_and_changes_meanwhile_leave_the_same_rows(
    kind: str, mode: str, source: Database, request: pytest.FixtureRequest
) -> None:
    """Another thread writes all the time, from before the slot is created; a batch may end between any two transactions."""
    target = fresh(kind, request)
    target.execute(PEOPLE, ORDERS)
    writer = threading.Thread(target=change_at_random, args=(source, random.Random(7), 150))
    writer.start()
    with session_of(source, target, TABLES, f"    mode: {mode}\n", changes_max=40) as session:
        carrier = Carrier(session, is_patient_from_the_start=False)
        while writer.is_alive():
            apply_with(carrier)
        writer.join()
        apply_with(carrier)
        assert same(source, target, *TABLES)
        change_at_random(source, random.Random(8), 30)
        apply_with(carrier)
        assert session.standing().pending is None
    assert same(source, target, *TABLES)


def test_a_change_is_announced_at_once(source: Database, target: Database) -> None:
    """The source is not asked: the change is sent as soon as it is committed."""
    with session_of(source, target, TABLES) as session:
        carrier = Carrier(session, is_patient_from_the_start=False)
        apply_with(carrier)
        assert not carrier.has_news()
        source.execute("UPDATE people SET note = 'x' WHERE id = 1")
        began = time.monotonic()
        while not carrier.has_news():
            assert time.monotonic() - began < 10
        assert [one.changes for one in apply_with(carrier)] == [1]


def test_only_what_the_target_has_is_confirmed_to_the_slot(source: Database, target: Database) -> None:
    """Before the target's commit the slot keeps a change; after it, at the latest when the sync is closed, it need not."""
    with session_of(source, target, TABLES) as session:
        applied(session)
        source.execute("UPDATE people SET note = 'x' WHERE id = 1")
        before = confirmed(source)
        assert session.plan() is not None
        passes = session.passes()
        batches = next(passes)
        assert confirmed(source) == before
        (done,) = batches
        assert before < done.through
    assert confirmed(source) == done.through


def test_an_idle_slot_does_not_hold_the_log(source: Database, target: Database) -> None:
    """Changes of other tables move the position, without a change of the target's rows."""
    with session_of(source, target, TABLES) as session:
        applied(session)
        began = confirmed(source)
        source.execute("CREATE TABLE other (x text)")
        for _ in range(5):
            source.execute(f"INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, {MARK_BYTES // 4000})")
    with session_of(source, target, TABLES) as session:
        assert applied(session) == []
    assert confirmed(source) > began + MARK_BYTES


def test_a_second_run_takes_the_slot_over(source: Database, target: Database) -> None:
    """The first one, which reads from the slot, ends; it cannot write any more."""
    with session_of(source, target, TABLES) as first, session_of(source, target, TABLES) as second:
        one = Carrier(first, is_patient_from_the_start=False)
        apply_with(one)
        applied(second)
        source.execute("UPDATE people SET note = 'x' WHERE id = 1")
        assert sum(batch.changes for batch in applied(second)) == 1
        with pytest.raises(Unavailable, match="another process reads from the slot"):
            first.plan()
        assert first.verify(5).differences == 0
    assert same(source, target, *TABLES)


def test_one_statement_empties_tables(source: Database, target: Database) -> None:
    """TRUNCATE of several tables is one transaction, with what follows in it."""
    with session_of(source, target, TABLES) as session:
        applied(session)
        with source.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO people VALUES (900, 'gone', 1, 'n')")
            connection.execute("TRUNCATE people, orders")
            connection.execute("INSERT INTO people VALUES (901, 'm1', 1, 'n')")
        applied(session)
    assert same(source, target, *TABLES)
    assert [row["id"] for row in target.rows("people")] == [901]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX people_tag"])
def test_a_large_value_that_did_not_change_stays(identity: str, postgres: str) -> None:
    """The server does not send it, also where the key changes."""
    with source_of(postgres) as source:
        target = fresh_postgres(postgres)
        table = "CREATE TABLE people (id int PRIMARY KEY, tag int NOT NULL, note text, n int)"
        source.execute(
            table, "ALTER TABLE people ALTER note SET STORAGE EXTERNAL", "CREATE UNIQUE INDEX people_tag ON people (tag)",
            f"ALTER TABLE people REPLICA IDENTITY {identity}",
            "INSERT INTO people SELECT g, g, repeat('x', 9000) || g, 0 FROM generate_series(1, 4) g",
        )  # fmt: skip
        target.execute(table)
        key = "    key: [tag]\n" if "INDEX" in identity else ""
        with session_of(source, target, ["people"], key) as session:
            applied(session)
            source.execute(
                "UPDATE people SET n = 1 WHERE id = 1", "UPDATE people SET id = 20, tag = 20 WHERE id = 2",
                "UPDATE people SET n = NULL WHERE id = 3", "DELETE FROM people WHERE id = 4",
            )  # fmt: skip
            applied(session)
        assert same(source, target, "people")


def test_a_table_without_a_key_and_with_whole_rows(postgres: str) -> None:
    """REPLICA IDENTITY FULL shows which of several equal rows change."""
    with source_of(postgres) as source:
        target = fresh_postgres(postgres)
        for database in (source, target):
            database.execute("CREATE TABLE log (a int, b text)")
        source.execute("ALTER TABLE log REPLICA IDENTITY FULL", "INSERT INTO log VALUES (1, 'x'), (1, 'x'), (2, NULL)")
        with session_of(source, target, ["log"]) as session:
            applied(session)
            source.execute(
                "UPDATE log SET b = 'y' WHERE ctid = '(0,1)'",
                "DELETE FROM log WHERE a = 2",
                "INSERT INTO log VALUES (3, 'z')",
            )
            applied(session)
        assert same(source, target, "log")


def test_a_table_without_a_replica_identity_is_refused_before_it_is_published(
    source: Database, target: Database
) -> None:
    """Otherwise the source would refuse the updates of its application."""
    for database in (source, target):
        database.execute("CREATE TABLE log (a int)")
    with session_of(source, target, ["log"]) as session, pytest.raises(InvalidRequest, match="no replica identity"):
        applied(session)
    assert source.query(f"SELECT 1 FROM pg_publication WHERE pubname = '{slot_of(source)}'") == []


def test_an_identity_without_the_targets_key_is_refused(source: Database, target: Database) -> None:
    """A change of the key would not say which row it was."""
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, tag int NOT NULL UNIQUE)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_tag_key",
    )
    target.execute("CREATE TABLE t (id int PRIMARY KEY, tag int NOT NULL UNIQUE)")
    with session_of(source, target, ["t"]) as session, pytest.raises(InvalidRequest, match="lacks columns that tell"):
        applied(session)


@pytest.mark.parametrize("how", ["stop", "ignore", "add_columns"])
def test_a_new_column_is_treated_as_the_sync_says(how: str, source: Database, target: Database) -> None:
    """As with Debezium's envelopes."""
    with session_of(source, target, TABLES, f"    on_schema_change: {how}\n") as session:
        applied(session)
        source.execute("ALTER TABLE people ADD COLUMN age int", "UPDATE people SET age = 7 WHERE id = 1")
        if how == "stop":
            with pytest.raises(InvalidRequest, match="has a column that the target table does not have"):
                applied(session)
            return
        applied(session)
    (row,) = (one for one in target.rows("people") if one["id"] == 1)
    assert row.get("age") == (7 if how == "add_columns" else None)


def test_a_dropped_slot_is_reported_and_a_resync_goes_on(source: Database, target: Database) -> None:
    """Also one that was created again: it lacks the changes between."""
    name = slot_of(source)
    with session_of(source, target, TABLES) as session:
        applied(session)
    for again in ("", f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"):
        source.execute(
            f"SELECT pg_drop_replication_slot('{name}')", "DELETE FROM orders WHERE id = 1", again or "SELECT 1"
        )
        expected = "the slot is past the target's position" if again else "the slot is gone"
        with session_of(source, target, TABLES) as session:
            with pytest.raises(CheckpointMismatch, match=expected) as refused:
                applied(session)
            assert "lakegate sync resync" in str(refused.value)
            source.execute("DELETE FROM orders WHERE id = 2", "UPDATE people SET email = 'moved' WHERE id = 3")
            session.resync()
            assert same(source, target, *TABLES)
        source.execute("UPDATE people SET note = 'x' WHERE id = 4")
        with session_of(source, target, TABLES) as session:
            applied(session)
        assert same(source, target, *TABLES)


def test_a_slot_that_is_not_the_syncs_is_left_alone(source: Database, target: Database) -> None:
    """It may be another sync's, to the same database."""
    source.execute(f"SELECT pg_create_logical_replication_slot('{slot_of(source)}', 'pgoutput')")
    with session_of(source, target, TABLES) as session, pytest.raises(InvalidRequest, match="the slot exists"):
        applied(session)


def test_a_target_with_rows_is_refused(source: Database, target: Database) -> None:
    """They would stay, or be emptied by a load that is begun again."""
    target.execute("INSERT INTO people VALUES (1, 'a', 1, 'b')")
    with (
        session_of(source, target, TABLES) as session,
        pytest.raises(InvalidRequest, match="the target table has rows"),
    ):
        applied(session)
    assert len(rows(target, "people")) == 1


def test_a_table_that_was_not_read_for_a_time_is_refused(source: Database, target: Database) -> None:
    """Taken out of the sync's tables and named again: its changes since would be missing."""
    for tables in (TABLES, ["people"]):
        with session_of(source, target, tables) as session:
            applied(session)
            source.execute("UPDATE people SET note = note || 'x' WHERE id = 1", "DELETE FROM orders WHERE id = 1")
            applied(session)
    with session_of(source, target, TABLES) as session, pytest.raises(CheckpointMismatch, match="did not read it"):
        applied(session)


def test_a_table_that_was_never_loaded_is_refused(source: Database, target: Database) -> None:
    """Its older rows would be missing."""
    for database in (source, target):
        database.execute("CREATE TABLE more (id int PRIMARY KEY)")
    with session_of(source, target, TABLES) as session:
        applied(session)
    source.execute(f"ALTER PUBLICATION {slot_of(source)} ADD TABLE more", "INSERT INTO more VALUES (1)")
    with session_of(source, target, TABLES) as session:
        assert applied(session) == []
    with (
        session_of(source, target, [*TABLES, "more"]) as session,
        pytest.raises(CheckpointMismatch, match="never loaded"),
    ):
        applied(session)
    with session_of(source, target, []) as session, pytest.raises(CheckpointMismatch, match="never loaded"):
        applied(session)


@pytest.mark.parametrize(
    ("change", "message", "advice"),
    [
        ("ALTER PUBLICATION {} DROP TABLE people", "not in the publication", "ADD TABLE"),
        ("ALTER PUBLICATION {} SET (publish = 'insert')", "does not publish all changes", "SET (publish"),
        ("DROP PUBLICATION {}", "the publication is gone", "CREATE PUBLICATION"),
    ],
)
def test_a_changed_publication_is_refused(
    change: str, message: str, advice: str, source: Database, target: Database
) -> None:
    """With the statement that repairs it."""
    with session_of(source, target, TABLES) as session:
        applied(session)
    source.execute(change.format(slot_of(source)))
    with session_of(source, target, TABLES) as session, pytest.raises(InvalidRequest, match=message) as refused:
        applied(session)
    assert advice in str(refused.value)


def test_the_position_of_another_source_is_refused(source: Database, target: Database) -> None:
    """Before the target is emptied."""
    target.execute("INSERT INTO people VALUES (1, 'a', 1, 'b')")
    with session_of(source, target, TABLES) as session:
        session._target.open_stream(session.stream)
        target.execute('UPDATE lakegate_stream SET last_batch = 1, place = \'{"source":"debezium"}\'')
        with pytest.raises(CheckpointMismatch, match="is one of another source"):
            applied(session)
    assert len(rows(target, "people")) == 1


def test_the_delay_is_measured_from_the_sources_commit(source: Database, target: Database) -> None:
    """A snapshot has no such time; and what is missing is seen without a run."""
    with session_of(source, target, TABLES) as session:
        applied(session)
        assert session.delay().changes == 0
        source.execute("UPDATE people SET note = 'x' WHERE id < 4")
        applied(session)
        found = session.delay()
        assert (found.changes, found.now_ms) == (3, 0)
        assert found.p50_ms is not None
        assert 0 <= found.p50_ms < 60_000
    source.execute("UPDATE people SET note = 'y' WHERE id < 4")
    time.sleep(0.1)
    with session_of(source, target, TABLES) as session:
        now_ms = session.delay().now_ms
        assert now_ms is not None
        assert 100 <= now_ms < 60_000
