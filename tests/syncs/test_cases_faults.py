"""Acceptance cases 41 to 46: rows that no target takes, values that others hold, locks, readers, and sizes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from lakegate.demo.database_servers import Database
from lakegate.errors import ConstraintViolated, Unavailable
from lakegate.syncs.targets.connections import Connections
from lakegate.syncs.targets.mariadb import MariadbDialect
from tests.syncs.short_changes import Step, c, changes_of, d, u
from tests.syncs.target_databases import KINDS, check_case, fill, fresh, sync

T = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE, n int NOT NULL, CHECK (n >= 0))"
every = pytest.mark.parametrize("kind", KINDS)
Request = pytest.FixtureRequest


def row(id: int, uk: Any, n: Any = 0) -> dict[str, Any]:
    """A row of `T`."""
    return {"id": id, "uk": uk, "n": n}


def found(database: Database) -> list[tuple[Any, ...]]:
    """Key and value of all rows."""
    return sorted((one["id"], one["uk"]) for one in database.rows("t"))


@every
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
@pytest.mark.parametrize("poison", ["check", "null", "type", "long"])
def test_case_41_a_poisoned_row(kind: str, mode: str, poison: str, request: Request) -> None:
    """The row is quarantined with its reason, and so is the row that needs a value it does not release; the rest is applied."""
    bad = {
        "check": row(1, "new", -1),
        "null": row(1, "new", None),
        "type": row(1, "new", "many"),
        "long": row(1, "x" * 60),
    }[poison]
    if kind == "sqlite" and poison in ("type", "long"):
        pytest.skip("SQLite takes any value in any column")
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [row(1, "x"), row(2, "y"), row(3, "z")])
    # 1 lets go of x and is poisoned, 2 takes x and lets go of y, 3 takes y: none of the three can be.
    steps: list[Step] = [("1", "t", "u", row(1, "x"), bad), u(1, row(2, "y"), uk="x"), u(1, row(3, "z"), uk="y")]
    steps += [c(2, row(i, f"v{i}")) for i in range(10, 40)]
    with pytest.raises(ConstraintViolated, match="t 1"):
        sync(database, changes_of(*steps), mode=mode, parallelism=4)
    if mode == "atomic" or kind == "sqlite":
        assert found(database) == [(1, "x"), (2, "y"), (3, "z")]
    (done,) = sync(database, changes_of(*steps), mode=mode, parallelism=4, on_violation="quarantine")
    assert found(database) == [(1, "x"), (2, "y"), (3, "z"), *((i, f"v{i}") for i in range(10, 40))]
    assert done.complete is not None
    assert sorted(dead.row.key for dead in done.complete.dead) == [(1,), (2,), (3,)]
    reasons = dict(database.query("SELECT row_key, reason FROM lakegate_dead"))
    assert reasons.keys() == {"[1]", "[2]", "[3]"}
    assert all(reasons.values())
    # A later image of the rows that fits brings them in.
    more = [*steps, d(3, row(3, "y")), c(4, row(3, "fine")), u(5, row(2, "x"), uk="good"), u(6, row(1, "new"), n=1)]
    sync(database, changes_of(*more), mode=mode, on_violation="quarantine")
    assert found(database)[:3] == [(1, "new"), (2, "good"), (3, "fine")]


@every
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_violation_found_at_the_commit_is_named_and_its_row_quarantined(
    kind: str, mode: str, request: Request
) -> None:
    """A child without its parent, where the foreign key waits for the end; a row that was wrong before is nobody's fault."""
    deferred = "" if kind == "mariadb" else "DEFERRABLE INITIALLY DEFERRED"
    database = fresh(kind, request)
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY)",
        f"CREATE TABLE c (id int PRIMARY KEY, pid int, FOREIGN KEY (pid) REFERENCES p (id) {deferred})",
    )
    fill(database, "p", [{"id": 1}])
    if kind == "sqlite":  # where a connection checks foreign keys only if it asks for that
        fill(database, "c", [{"id": 90, "pid": 7}])
    children = [{"id": i, "pid": 9 if i in (13, 30) else 1} for i in range(10, 40)]
    changes = changes_of(*(c(i, one, "c") for i, one in enumerate(children)))
    with pytest.raises(ConstraintViolated, match=r"c (13|30)\b"):  # the first of either slot
        sync(database, changes, mode=mode, parallelism=2)
    (done,) = sync(database, changes, mode=mode, parallelism=2, on_violation="quarantine")
    assert done.complete is not None
    assert sorted(dead.row.key for dead in done.complete.dead) == [(13,), (30,)]
    there = {one["id"] for one in database.rows("c")}
    assert there - {90} == {one["id"] for one in children} - {13, 30}


@every
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_case_42_a_row_that_the_stream_does_not_know(kind: str, mode: str, request: Request) -> None:
    """It holds the value: both primary keys are named; it is never overwritten."""
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [row(1, "x"), row(99, "y", 5)])
    changes = changes_of(u(1, row(1, "x"), uk="y"), c(2, row(2, "z")))
    with pytest.raises(ConstraintViolated) as stopped:
        sync(database, changes, mode=mode, parallelism=2)
    assert stopped.value.facts["holder"] == "99"
    assert stopped.value.facts["holder_is_outside_the_batch"] is True
    assert "t 1" in str(stopped.value.facts["rows"])
    sync(database, changes, mode=mode, parallelism=2, on_violation="quarantine")
    assert found(database) == [(1, "x"), (2, "z"), (99, "y")]
    assert "99" in database.query("SELECT reason FROM lakegate_dead")[0][0]


@every
def test_case_43_a_foreign_writer_holds_a_lock(kind: str, request: Request) -> None:
    """The wait is bounded: in the end `Unavailable`; if the lock goes in time, nobody notices."""
    database = fresh(kind, request)
    database.execute(T)
    fill(database, "t", [row(1, "x"), row(2, "y")])
    settings = {"postgres": {"lock_wait_ms": 100}, "mariadb": {"lock_wait_s": 1}, "sqlite": {"busy_s": 0}}[kind]
    changes = changes_of(u(1, row(1, "x"), uk="y"), u(1, row(2, "y"), uk="x"))
    other = database.connect()
    cursor = other.cursor()
    cursor.execute("BEGIN IMMEDIATE" if kind == "sqlite" else "BEGIN")
    cursor.execute("UPDATE t SET n = 1 WHERE id = 1")
    if kind != "mariadb":  # eight waits of a second and more
        began_s = time.monotonic()
        with pytest.raises(Unavailable, match=r"each attempt ended in a conflict: .*lock") as error:
            sync(database, changes, target_settings=settings)
        assert error.value.facts["tries"] == 8
        if kind == "postgres":  # SQLite's lock is on the whole file: not even the position can be asked for
            assert (error.value.facts["tables"], error.value.facts["position"]) == ("t", 1)
        assert time.monotonic() - began_s < 60
    end = threading.Timer(1.0, lambda: other.execute("COMMIT") if kind == "sqlite" else other.commit())
    end.start()
    sync(database, changes, target_settings=settings)
    end.join()
    other.close()
    assert found(database) == [(1, "y"), (2, "x")]


@pytest.mark.mariadb
def test_case_43_a_table_that_is_locked_as_a_whole(request: Request) -> None:
    """MariaDB waits a day for it of its own accord."""
    database = fresh("mariadb", request)
    database.execute(T)
    other = database.connect()
    other.cursor().execute("LOCK TABLES t WRITE")
    end = threading.Timer(2.5, lambda: other.cursor().execute("UNLOCK TABLES"))
    connections = Connections(MariadbDialect(database.dsn, lock_wait_s=1))
    tried: list[float] = []

    def insert(cursor: Any) -> None:
        tried.append(time.monotonic())
        cursor.execute("INSERT INTO t VALUES (1, 'x', 0)")

    end.start()
    connections.transaction(insert)
    end.join()
    connections.close()
    other.close()
    assert len(tried) > 1  # it gave up, and came again
    assert found(database) == [(1, "x")]


@pytest.mark.slow
@every
def test_case_44_hot_rows_and_large_components(kind: str, request: Request) -> None:
    """Many updates of one row are one write; a ring of thousands is applied at once."""
    steps: list[Step] = []
    value = "v0"
    for i in range(5_000):
        steps.append(u(i, row(0, value), uk=f"w{i}"))
        value = f"w{i}"
    n = 5_000
    ring = [u("ring", row(i, f"r{i}"), uk=f"r{i % n + 1}") for i in range(1, n + 1)]
    before = {"t": [row(0, "v0"), *(row(i, f"r{i}") for i in range(1, n + 1))]}
    after = {"t": [row(0, value), *(row(i, f"r{i % n + 1}") for i in range(1, n + 1))]}
    done = check_case(kind, request, [T], before, [*steps, *ring], after, [("parallel", 8, 100_000)])
    assert done.complete is not None
    assert (done.changes, done.complete.rows, done.complete.largest) == (10_000, n + 1, n)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1]])
def test_case_45_a_reader_during_an_atomic_apply(kind: str, request: Request) -> None:
    """It never sees half a transaction: the total stays what it is at the source."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, uk int UNIQUE, n int)")
    fill(database, "t", [{"id": i, "uk": i, "n": 100} for i in range(20)])
    state = {i: {"id": i, "uk": i, "n": 100} for i in range(20)}
    steps: list[Step] = []
    for tx in range(150):
        one, other = tx % 20, (tx * 7 + 3) % 20
        if one != other:
            a, b = state[one], state[other]
            state[one], state[other] = {**a, "uk": b["uk"], "n": a["n"] - tx}, {**b, "uk": a["uk"], "n": b["n"] + tx}
            steps += [(str(tx), "t", "u", a, state[one]), (str(tx), "t", "u", b, state[other])]
    seen, going = set(), threading.Event()
    going.set()

    def read() -> None:
        connection = database.connect()
        cursor = connection.cursor()
        while going.is_set():
            cursor.execute("SELECT count(*), sum(n), count(DISTINCT uk) FROM t")
            seen.add(tuple(map(int, cursor.fetchone())))
        connection.close()

    reader = threading.Thread(target=read)
    reader.start()
    sync(database, changes_of(*steps), changes_max=4)
    time.sleep(0.05)
    going.clear()
    reader.join()
    assert seen == {(20, 2000, 20)}


@every
def test_case_46_text_at_its_edges(kind: str, request: Request) -> None:
    """Four-byte letters, the empty string and NULL; half a surrogate is no text and is reported."""
    table = "CREATE TABLE t (id int PRIMARY KEY, uk varchar(50) UNIQUE, n int NOT NULL)"
    if kind == "mariadb":
        table += " CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
    before = {"t": [row(1, "🙂"), row(2, "")]}
    steps = [u(1, row(1, "🙂"), uk=""), u(1, row(2, ""), uk="🙂"), c(1, row(3, None)), c(1, row(4, "👍🏽"))]
    final = {"t": [row(1, ""), row(2, "🙂"), row(3, None), row(4, "👍🏽")]}
    check_case(kind, request, [table], before, steps, final)
    database = fresh(kind, request)
    database.execute(table)
    broken = changes_of(c(1, row(1, "a\ud800")), c(2, row(2, "fine")))
    with pytest.raises(ConstraintViolated, match="t 1"):
        sync(database, broken)
    sync(database, broken, on_violation="quarantine")
    assert found(database) == [(2, "fine")]
