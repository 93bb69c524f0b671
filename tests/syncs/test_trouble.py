"""Targets in trouble: what passes is waited for, a row's fault is that row's, and what is for good stops the sync."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakegate.demo.database_servers import Database, mariadb_server, postgres_server
from lakegate.errors import ConstraintViolated, Fenced, Unavailable, UnsupportedTable
from lakegate.syncs.patience import Patience
from tests.syncs.short_changes import c, changes_of
from tests.syncs.target_databases import KINDS, fresh, sync

BIG = os.urandom(15_000).hex()  # nothing that the server could compress
OWN = "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW BEGIN IF NEW.v = 'no' THEN {} END IF; END"
ASSERTS = "CREATE FUNCTION asserts() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {} RETURN NEW; END$$"
WITH = "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION asserts()"
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v {})"
ROWS: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "index row": ("postgres", (TABLE.format("text UNIQUE"),), BIG),
    "assertion": ("postgres", (TABLE.format("text"), ASSERTS.format("ASSERT NEW.v <> ''no'';").replace("''", "'"), WITH), "no"),
    "own state": (
        "postgres",
        (TABLE.format("text"), ASSERTS.format("IF NEW.v = 'no' THEN RAISE EXCEPTION USING ERRCODE = 'HG123'; END IF;"), WITH),
        "no",
    ),
    "no partition": ("postgres", ("CREATE TABLE t (id bigint, v text, PRIMARY KEY (id, v)) PARTITION BY LIST (v)",
                                  "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN ('a', 'b')"), "c"),
    "packet": ("mariadb", (TABLE.format("longtext"),), "x" * 17_000_000),
    "geometry": ("mariadb", (TABLE.format("geometry"),), "nonsense"),
    "own number": ("mariadb", (TABLE.format("text"), OWN.format("SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30001;")), "no"),
    "another's number": ("mariadb", (TABLE.format("text"), OWN.format("SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1213;")), "no"),
    "nan": ("mariadb", (TABLE.format("double"),), float("nan")),
    "mariadb partition": ("mariadb", ("CREATE TABLE t (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id) "
                                      "(PARTITION a VALUES LESS THAN (3))",), "c"),
    "not a rowid": ("sqlite", ("CREATE TABLE t (id integer PRIMARY KEY, v text)",), None),
}  # fmt: skip
MARKS = {"postgres": [pytest.mark.postgres], "mariadb": [pytest.mark.mariadb], "sqlite": []}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[kind]) for name, (kind, _, _) in ROWS.items()])
def test_what_one_row_breaks_is_that_rows_fault(name: str, request: pytest.FixtureRequest) -> None:
    """Limits of the server, and errors that triggers raise: `stop` names the row, `quarantine` sets it apart."""
    kind, statements, value = ROWS[name]
    good = None if name in ("geometry", "nan") else "a"
    key = "text" if name == "not a rowid" else 9
    steps = [
        c(0, {"id": 1, "v": good}),
        c(0, {"id": key, "v": value}),
        c(0, {"id": 2, "v": None if good is None else "b"}),
    ]
    database = fresh(kind, request)
    database.execute(*statements)
    with pytest.raises(ConstraintViolated) as error:
        sync(database, changes_of(*steps))
    assert f"rows=t {key}" in error.value.message
    done = sync(database, changes_of(*steps), on_violation="quarantine")
    assert [each.complete.dead[0].row.key[0] for each in done if each.complete] == [key]
    assert sorted(row["id"] for row in database.rows("t")) == [1, 2]
    assert len(database.rows("lakegate_dead")) == 1


@pytest.mark.mariadb
def test_a_value_that_is_too_large_to_be_kept_is_left_out_of_the_dead_letter(request: pytest.FixtureRequest) -> None:
    """The rest of the row is there, and how large the value was."""
    database = fresh("mariadb", request)
    database.execute(TABLE.format("longtext"))
    sync(database, changes_of(c(0, {"id": 1, "v": "x" * 17_000_000})), on_violation="quarantine")
    ((image,),) = database.query("SELECT image FROM lakegate_dead")
    assert json.loads(image) == {"id": 1, "v": {"lakegate_left_out_bytes": 17_000_002}}


@pytest.mark.postgres
def test_a_read_only_target_is_reported_as_read_only(request: pytest.FixtureRequest) -> None:
    """After a fail-over: status 6, as it may pass, and not as a mistake in the file; before and after the first batch."""
    database = fresh("postgres", request)
    database.execute(TABLE.format("text"))
    standby = Database("postgres", database.dsn + "%20-cdefault_transaction_read_only%3Don")
    for n in (1, 2):
        with pytest.raises(Unavailable, match="the target is read-only") as error:
            sync(standby, changes_of(c(0, {"id": 1, "v": "a"}), c(1, {"id": 2, "v": "a"})))
        assert error.value.exit_code == 6
        sync(database, changes_of(c(0, {"id": n, "v": "a"})))


def test_a_target_without_space_or_permission_to_write_is_reported_as_such(request: pytest.FixtureRequest) -> None:
    """SQLite: the file system's or the file's limit (`max_page_count`), and a file that is read-only."""
    database = fresh("sqlite", request)
    database.execute(TABLE.format("text"))
    sync(database, changes_of(c(0, {"id": 1, "v": "a"})))
    path = Path(database.dsn.removeprefix("sqlite:"))
    target = database.target()
    connect = target._dialect.connect

    def small() -> Any:
        connection: Any = connect()
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    target._dialect.connect = small  # type: ignore[method-assign]
    from harness.changes import Changes
    from lakegate.syncs.runner import run

    with pytest.raises(Unavailable, match="disk is full"):
        list(run(Changes(changes_of(*(c(n, {"id": n, "v": "x" * 5_000}) for n in range(2, 9)))), target, stream="s"))
    target.close()
    if os.geteuid():
        path.chmod(0o444)
        with pytest.raises(Unavailable, match="read-only"):
            sync(database, changes_of(c(9, {"id": 9, "v": "a"})))


@pytest.mark.postgres
def test_a_missing_permission_is_for_good(request: pytest.FixtureRequest) -> None:
    """Exit status 2: waiting does not help."""
    database = fresh("postgres", request)
    role = database.dsn.rpartition("%3D")[2]
    database.execute(TABLE.format("text"), f"CREATE ROLE {role} LOGIN", f"GRANT ALL ON SCHEMA {role} TO {role}")
    with pytest.raises(UnsupportedTable, match="permission denied"):
        sync(Database("postgres", database.dsn.replace("postgres@", f"{role}@")), changes_of(c(0, {"id": 1, "v": "a"})))


@pytest.mark.parametrize("kind", KINDS)
def test_syncs_that_begin_at_once_do_not_race_for_the_control_tables(kind: str, request: pytest.FixtureRequest) -> None:
    """Eight on an empty target, under eight names and under one: each begins, or was followed."""
    database = fresh(kind, request)
    database.execute(TABLE.format("varchar(9)"))

    def begin(name: str) -> int:
        target = database.target()
        try:
            return target.open_stream(name).epoch
        except Fenced:  # followed before it had begun
            return 0
        finally:
            target.close()

    for names in ([f"s{n}" for n in range(8)], ["one"] * 8):
        with ThreadPoolExecutor(8) as pool:
            epochs = list(pool.map(begin, names))
        assert names[0] == "one" or epochs == [1] * 8
        assert max(row["epoch"] for row in database.rows("lakegate_stream")) == (8 if names[0] == "one" else 1)
        database.execute("DROP TABLE lakegate_stream", "DROP TABLE lakegate_slot", "DROP TABLE lakegate_dead")


def test_patience_ends_after_its_time_and_begins_again_after_a_success() -> None:
    """Pauses grow up to a bound, and none reaches behind the end."""
    now, pauses = 0.0, list[float]()
    patience = Patience(60.0, clock=lambda: now)

    def fail_on() -> None:
        nonlocal now
        while True:
            patience.fail(Unavailable("away"))
            assert patience.is_waiting
            pauses.append(patience.retry_at - now)
            now = patience.retry_at

    for _ in range(2):
        with pytest.raises(Unavailable, match="waited_s=60 tries="):
            fail_on()
        assert patience.succeed()
        assert not patience.succeed()
    assert max(pauses) <= 15
    assert 8 < len(pauses) < 30


@contextlib.contextmanager
def following(root: Path, dsn: str, patience: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`lakegate sync run` on files in `root`, ended with the block; its errors are in a file."""
    (root / "lakegate.yml").write_text(
        f'name: p\nsync:\n  s:\n    from: {{files: "c/*.jsonl"}}\n    to: "{dsn}"\n    patience: {patience}\n'
    )
    errors = root / "errors"
    with errors.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakegate", "sync", "run", "--spec", str(root)],
            stderr=output,
            stdout=output,
            text=True,
        )
        try:
            yield process, errors
        finally:
            process.kill()
            process.wait()


def bring(root: Path, n: int) -> None:
    """Adds a file with one more row."""
    (root / "c").mkdir(exist_ok=True)
    line = {"seq": n, "tx": str(n), "table": "t", "op": "c", "after": {"id": n, "v": "a"}}
    (root / "c" / f".{n}").write_text(json.dumps(line) + "\n")
    (root / "c" / f".{n}").rename(root / "c" / f"{n}.jsonl")


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_target_that_is_restarted_does_not_end_the_sync(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A real server that stops and starts again: the sync says that it waits, and goes on; one that stays away ends it with 6."""
    root = tmp_path_factory.mktemp("r")
    directory = root / "s"
    server = postgres_server if kind == "postgres" else mariadb_server
    with contextlib.ExitStack() as first:
        dsn = first.enter_context(server(directory))
        database = Database(kind, dsn)
        if kind == "mariadb":
            database.execute("CREATE DATABASE d")
            database = Database(kind, dsn.replace("localhost/", "localhost/d"))
        database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
        bring(root, 1)
        with following(root, database.dsn, "60s") as (process, errors):
            until(lambda: len(database.rows("t")) == 1)
            first.close()
            bring(root, 2)
            until(lambda: "waiting up to 60 s" in errors.read_text())
            with server(directory):
                until(lambda: len(database.rows("t")) == 2)
                assert process.poll() is None
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
            assert errors.read_text().count("waiting") == 1
        with contextlib.ExitStack() as second:
            second.enter_context(server(directory))
            with following(root, database.dsn, "1s") as (process, errors):
                bring(root, 3)
                until(lambda: len(database.rows("t")) == 3)
                second.close()
                bring(root, 4)
                assert process.wait(60) == 6
                assert "waited_s=" in errors.read_text()


SEQUENCES = {
    "postgres": (
        "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v text)",
        "CREATE TABLE s (id serial PRIMARY KEY, v text)", "CREATE SEQUENCE down INCREMENT -1 START 100 MAXVALUE 100",
        "CREATE TABLE n (id int PRIMARY KEY DEFAULT nextval('down'), v text)",
    ),
    "mariadb": (
        "CREATE TABLE t (id bigint AUTO_INCREMENT PRIMARY KEY, v text)", "CREATE SEQUENCE up",
        "CREATE TABLE s (id bigint DEFAULT nextval(up) PRIMARY KEY, v text)",
        "CREATE SEQUENCE down INCREMENT -1 START WITH 100 MAXVALUE 100",
        "CREATE TABLE n (id bigint DEFAULT nextval(down) PRIMARY KEY, v text)",
    ),
    "sqlite": tuple(f"CREATE TABLE {name} (id integer PRIMARY KEY AUTOINCREMENT, v text)" for name in "tsn"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_cutover_others_can_insert(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Identities, serial columns and defaults of sequences, rising and falling; a second cutover moves nothing back."""
    from tests.cli.command import lakegate

    database = fresh(kind, request)
    database.execute(*SEQUENCES[kind])
    (tmp_path / "c").mkdir()
    steps = [("t", 7), ("t", 3), ("s", 9), ("n", 99 if kind != "sqlite" else 1), ("n", 95 if kind != "sqlite" else 2)]
    lines = [
        {"seq": n, "tx": str(n), "table": table, "op": "c", "after": {"id": id, "v": "a"}}
        for n, (table, id) in enumerate(steps)
    ]
    (tmp_path / "lakegate.yml").write_text(
        f'name: p\nsync:\n  s:\n    from: {{files: "c/*.jsonl"}}\n    to: "{database.dsn}"\n'
    )
    (tmp_path / "c" / "1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines[:-1]))
    assert lakegate("sync", "cutover", "s", "--spec", tmp_path).code == 2
    assert lakegate("sync", "run", "--once", "--spec", tmp_path).code == 0
    (tmp_path / "c" / "2.jsonl").write_text(json.dumps(lines[-1]) + "\n")
    assert lakegate("sync", "cutover", "s", "--spec", tmp_path).code == 2  # there is more
    assert lakegate("sync", "run", "--once", "--spec", tmp_path).code == 0
    ran = lakegate("sync", "cutover", "s", "--spec", tmp_path, "--output", "json")
    assert ran.code == 0, ran.err
    expected = {"postgres": {"t": 8, "s": 10, "n": 94}, "mariadb": {"s": 10, "n": 94}, "sqlite": {}}[kind]
    assert {one["table"]: one["now"] for one in ran.json["sequences"]} == expected
    for name in "tsn":
        database.execute(f"INSERT INTO {name} (v) VALUES ('mine')")
        assert len(database.rows(name)) == {"t": 3, "s": 2, "n": 3}[name]
    again = lakegate("sync", "cutover", "s", "--spec", tmp_path, "--output", "json").json["sequences"]
    assert all(one["now"] == one["was"] for one in again)
