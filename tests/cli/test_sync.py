"""`lakegate sync`: the command carries changes over, says what it would do, and leaves everything alone when it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import lakegate as lg
from lakegate.cli.sync import wait_for_news
from lakegate.demo.database_servers import fresh_postgres
from lakegate.errors import InvalidRequest
from tests.cli.command import lakegate, state_of
from tests.cli.sync_of_people import (
    CLASH,
    PEOPLE,
    ROWS,
    SETTINGS,
    SWAP,
    bring,
    change,
    execute,
    letters,
    people,
    person,
    pipeline,
    sync,
)

LEVEL = {"p50_ms": None, "p99_ms": None, "changes": 0, "now_ms": 0, "window_ms": 900_000}
"""The delay of a sync that has everything. Change files do not tell when their changes were committed."""

# ---------------------------------------------------------------------------------------------------- what it does


@pytest.mark.parametrize("pace", ["--once", "--until-idle"])
@pytest.mark.parametrize("plan", ["staged", "conflict_queue"])
def test_a_swap_is_applied_once(tmp_path: Path, pace: str, plan: str) -> None:
    """Two rows exchange a unique value; a second run applies nothing; what comes later is applied."""
    pipeline(tmp_path, settings=f"{{{SETTINGS}, plan: {plan}}}"[1:-1].replace(", ", "\n    "))
    bring(tmp_path, "1", SWAP)
    ran = sync(tmp_path, "run", pace, "--output", "json")
    assert ran.code == 0, ran.err
    counts = {"sync": "crm", "batches": 1, "changes": 2, "rows": 2, "set_apart": 0, "position": 1, "delay": LEVEL}
    assert ran.json == {"format": 1, "syncs": [counts]}
    assert people(tmp_path) == [(1, "b"), (2, "a"), (3, "c")]
    again = sync(tmp_path, "run", pace, "--output", "json")
    assert again.json["syncs"][0]["batches"] == 0
    assert people(tmp_path) == [(1, "b"), (2, "a"), (3, "c")]
    bring(tmp_path, "0", [change(7, "5", "d", person(3, "c"), None)])
    last = sync(tmp_path, "run", pace, "--output", "jsonl")
    assert [line.get("event") for line in last.lines] == ["BatchApplied", "SyncReport"]
    assert (last.lines[0]["batch"], last.lines[0]["position"]) == (2, 7)
    assert people(tmp_path) == [(1, "b"), (2, "a")]


def test_a_plan_says_what_will_be_and_changes_nothing(tmp_path: Path) -> None:
    """Neither in a target that knows no stream, nor in one that does."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    for known in (False, True):
        before = state_of(tmp_path)
        ran = sync(tmp_path, "plan", "--output", "json")
        assert ran.code == 0, ran.err
        batch = ran.json["syncs"][0]["batch"]
        assert state_of(tmp_path) == before
        if known:
            assert (batch["batch"], batch["rows"], batch["edges"], batch["components"]) == (2, {"people": 2}, 0, 0)
            assert [(one["key"], one["position"]) for one in batch["troubles"]] == [("[4]", 2)]
            assert "the value belongs to the row 3, which is not in this batch" in batch["troubles"][0]["reason"]
        else:
            assert (batch["changes"], batch["through"], batch["edges"]) == (2, 1, 2)
            assert (batch["components"], batch["largest"], batch["transactions"]) == (1, 2, 1)
            assert batch["serial"] == ["the whole batch is one transaction: mode is atomic"]
            assert sync(tmp_path, "run", "--once").code == 0
            bring(tmp_path, "2", CLASH)
    text = sync(tmp_path, "plan").out
    assert "trouble       people [4] (position 2)" in text


def test_a_plan_of_nothing_and_of_a_definition(tmp_path: Path) -> None:
    """The output says that there is nothing, or names the definition."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    sync(tmp_path, "run", "--once")
    assert sync(tmp_path, "plan").out == "crm: nothing to apply\n"
    assert sync(tmp_path, "plan", "--output", "json").json["syncs"] == [{"sync": "crm", "batch": None, "caveat": None}]
    statement = "ALTER TABLE people ADD COLUMN name text"
    bring(tmp_path, "2", [{"seq": 5, "tx": None, "table": "people", "op": "ddl", "sql": statement}])
    before = state_of(tmp_path)
    assert f"statement     {statement}" in sync(tmp_path, "plan").out
    assert "does not execute any" in sync(tmp_path, "plan").out
    assert state_of(tmp_path) == before
    refused = sync(tmp_path, "run", "--once")
    assert (refused.code, "set `ddl: apply` if you trust who writes there" in refused.err) == (2, True)
    spec = tmp_path / "lakegate.yml"
    spec.write_text(spec.read_text() + "    ddl: apply\n")
    assert sync(tmp_path, "run", "--once").code == 0
    assert execute(tmp_path, "SELECT id, name FROM people WHERE id = 1") == [(1, None)]


def test_a_violation_stops_and_the_target_is_as_it_was(tmp_path: Path) -> None:
    """Exit status 1, with constraint and row; the batch before stays in."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    sync(tmp_path, "run", "--once")
    bring(tmp_path, "2", CLASH)
    before = people(tmp_path)
    ran = sync(tmp_path, "run", "--until-idle")
    assert ran.code == 1
    assert "the changes break a constraint of the target" in ran.err
    assert "people 4 (position 2)" in ran.err
    assert "Traceback" not in ran.err
    assert people(tmp_path) == before
    (row,) = sync(tmp_path, "status", "--output", "json").json["syncs"]
    assert (row["position"], row["last_batch"], row["dead_rows"], row["pending"]) == (1, 1, 0, None)


def test_a_quarantined_row_is_listed_with_its_reason(tmp_path: Path) -> None:
    """The rest of its batch is applied, and that is no error."""
    pipeline(tmp_path, settings="on_violation: quarantine")
    assert letters(tmp_path).out == "crm has nothing set aside\n"
    bring(tmp_path, "1", [*SWAP, *CLASH])
    ran = sync(tmp_path, "run", "--once")
    assert (ran.code, ran.out) == (0, "crm: 1 batch, 4 changes, 3 rows applied, 1 quarantined\n")
    assert people(tmp_path) == [(1, "b"), (2, "a"), (3, "c"), (5, "e")]
    (row,) = letters(tmp_path, "--output", "json").json["dead_letters"]
    assert (row["name"], row["kind"], row["position"]) == ("crm", "row", "people@2")
    assert "belongs to the row 3" in row["reason"]
    assert "belongs to the row 3" in letters(tmp_path).out
    assert sync(tmp_path, "status", "--output", "json").json["syncs"][0]["dead_rows"] == 1


def test_status_before_and_after(tmp_path: Path) -> None:
    """It takes nothing over: the epoch is that of the last writer."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    before = state_of(tmp_path)
    new = {"sync": "crm", "stream": "p/crm", "position": None, "last_batch": 0, "epoch": 0, "pending": None}
    new |= {"dead_rows": 0, "delay": {**LEVEL, "now_ms": None}, "error": None}
    assert sync(tmp_path, "status", "--output", "json").json == {"format": 1, "syncs": [new]}
    assert state_of(tmp_path) == before
    sync(tmp_path, "run", "--once")
    for _ in range(2):
        (line,) = sync(tmp_path, "status", "--output", "jsonl").lines
        assert line == {"format": 1, **new, "position": 1, "last_batch": 1, "epoch": 1, "delay": LEVEL}


@pytest.mark.slow
def test_a_follower_applies_new_changes_until_it_is_stopped(tmp_path: Path) -> None:
    """SIGTERM ends it with 0, SIGINT as an interruption; idle looks write nothing."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            [sys.executable, "-m", "lakegate", "sync", "run", "--output", "jsonl", "--spec", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        with process:
            if number == signal.SIGTERM:
                assert json.loads(process.stdout.readline())["position"] == 1
                time.sleep(1.5)
                epochs = execute(tmp_path, "SELECT epoch FROM lakegate_stream")
                bring(tmp_path, "2", [change(4, "3", "d", person(3, "c"), None)])
            else:
                bring(tmp_path, "3", [change(9, "4", "c", None, person(9, "z"))])
            assert json.loads(process.stdout.readline())["event"] == "BatchApplied"
            if number == signal.SIGTERM:
                assert execute(tmp_path, "SELECT epoch FROM lakegate_stream") == epochs
            process.send_signal(number)
            assert json.loads(process.stdout.readline())["event"] == "SyncReport"
            assert process.wait(timeout=30) == code
    assert people(tmp_path) == [(1, "b"), (2, "a"), (9, "z")]


def test_an_idle_run_asks_again_until_there_is_news_or_a_pass_is_due() -> None:
    """Only sources that are cheap to ask are asked between two passes."""

    class Asked:
        def __init__(self, poll_s: float, news_at: int) -> None:
            self.poll_s, self.news_at, self.count = poll_s, news_at, 0

        def has_news(self) -> bool:
            self.count += 1
            return self.count == self.news_at

    near, far, silent = Asked(0.001, 3), Asked(1.0, 1), Asked(0.3, 100)
    wait_for_news([near, far], threading.Event())
    assert (near.count, far.count) == (3, 0)
    wait_for_news([silent], threading.Event())
    assert 1 <= silent.count <= 3
    ended = threading.Event()
    ended.set()
    wait_for_news([near], ended)
    assert near.count == 3


def test_parquet_files_go_to_the_table_that_the_file_names(tmp_path: Path) -> None:
    """With the source's own column for its transactions."""
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pipeline(tmp_path, settings="table: people")
    file = tmp_path / "lakegate.yml"
    written = "{files: changes, format: parquet, transaction: commit_id}"
    file.write_text(file.read_text().replace('{files: "changes/*.jsonl"}', written))
    rows = [
        {"seq": one["seq"], "commit_id": 7, "op": "u", **{k: json.dumps(one[k]) for k in ("before", "after")}}
        for one in SWAP
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "changes" / "a.parquet")
    assert sync(tmp_path, "plan", "--output", "json").json["syncs"][0]["batch"]["edges"] == 2
    assert sync(tmp_path, "run", "--once").code == 0
    assert people(tmp_path) == [(1, "b"), (2, "a"), (3, "c")]


def test_several_syncs_are_carried_together_and_one_by_name(tmp_path: Path) -> None:
    """One that cannot be reached does not hide how far the other is."""
    pipeline(tmp_path)
    with (tmp_path / "lakegate.yml").open("a") as file:
        file.write('  gone: {from: {files: changes}, to: "sqlite:gone.db"}\n')
    bring(tmp_path, "1", SWAP)
    assert sync(tmp_path, "run", "crm", "--once").code == 0
    ran = sync(tmp_path, "status", "--output", "json")
    assert ran.code == 6
    assert [(row["sync"], row["error"] is None) for row in ran.json["syncs"]] == [("crm", True), ("gone", False)]
    assert not (tmp_path / "gone.db").exists()
    execute(tmp_path, "DELETE FROM lakegate_stream", f"ATTACH '{tmp_path / 'gone.db'}' AS gone",
            PEOPLE.replace("people", "gone.people"), "INSERT INTO gone.people SELECT * FROM people")  # fmt: skip
    bring(tmp_path, "2", [change(4, "3", "d", person(3, "c"), None)])
    ran = sync(tmp_path, "run", "--until-idle", "--output", "json")
    assert (ran.code, [row["changes"] for row in ran.json["syncs"]]) == (0, [3, 3])


@pytest.mark.postgres
def test_on_postgres_the_command_swaps_and_a_plan_leaves_nothing(tmp_path: Path, postgres: str) -> None:
    """In mode `parallel`; the plan says how many transactions, and no table of its own stays."""
    database = fresh_postgres(postgres)
    database.execute(PEOPLE, ROWS)
    pipeline(tmp_path, dsn=database.dsn, settings="mode: parallel\n    parallelism: 2\n    on_violation: quarantine")
    more = [change(10 + i, f"x{i}", "c", None, person(100 + i, f"m{i}")) for i in range(8)]
    bring(tmp_path, "1", [*SWAP, *CLASH, *more])
    everything = "SELECT relname, relkind FROM pg_class WHERE relnamespace = current_schema()::regnamespace ORDER BY 1"

    def state() -> tuple[Any, Any]:
        import psycopg

        with psycopg.connect(database.dsn) as connection:
            rows = connection.execute("SELECT id, email FROM people ORDER BY id").fetchall()
            return connection.execute(everything).fetchall(), rows

    before = state()
    ran = sync(tmp_path, "plan", "--output", "json")
    assert ran.code == 0, ran.err
    batch = ran.json["syncs"][0]["batch"]
    assert state() == before
    assert (batch["edges"], batch["components"], batch["in_components"], batch["transactions"]) == (2, 1, 2, 2)
    assert len(batch["serial"]) == 1
    assert batch["serial"][0].startswith("2 rows in 1 group:")
    assert [one["key"] for one in batch["troubles"]] == ["[4]"]
    ran = sync(tmp_path, "run", "--once")
    assert ran.code == 0, ran.err
    assert state()[1][:4] == [(1, "b"), (2, "a"), (3, "c"), (5, "e")]
    assert len(state()[1]) == 12
    before = state()
    assert sync(tmp_path, "plan").out == "crm: nothing to apply\n"
    assert len(letters(tmp_path, "--output", "jsonl").lines) == 1
    (row,) = sync(tmp_path, "status", "--output", "json").json["syncs"]
    assert (row["position"], row["last_batch"], row["dead_rows"]) == (17, 1, 1)
    assert state() == before


# ------------------------------------------------------------------------------------------------- what it refuses


COMMANDS = [("plan",), ("run", "--once"), ("run", "--until-idle")]


def refused(root: Path, command: tuple[str, ...], code: int, *said: str) -> None:
    """The exit status, one message without a traceback, and rows as they were."""
    before = state_of(root)
    ran = sync(root, *command)
    assert ran.code == code, ran.out + ran.err
    assert "Traceback" not in ran.err
    for words in said:
        assert words in ran.err
    if command == ("plan",):
        assert state_of(root) == before


BAD_FILES = {
    "no JSON": ("{", 4, "1.jsonl"),
    "no object": ("[]\n", 4, "not an object"),
    "no seq": (json.dumps({**SWAP[0], "seq": None}), 4, "seq is not a number"),
    "an unknown op": (json.dumps({**SWAP[0], "op": "x"}), 4, "op is none of"),
    "out of order": (f"{json.dumps(SWAP[1])}\n{json.dumps(SWAP[0])}\n", 4, "not in the order of seq"),
    "not UTF-8": (b'{"seq": "\xff"}\n', 4, "1.jsonl"),
    "no table": (json.dumps({**SWAP[0], "table": None}), 4, "names no table"),
    "an unknown table": (json.dumps({**SWAP[0], "table": "nobody"}), 2, "nobody"),
    "an unknown column": (json.dumps(change(0, "1", "c", None, {"id": 9, "age": 3})), 2, "age"),
    "no key": (json.dumps(change(0, "1", "c", None, {"email": "z"})), 2, "people"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_and_nothing_of_it_applied(tmp_path: Path, name: str, command: tuple[str, ...]) -> None:
    """With file and line, or table and column."""
    text, code, said = BAD_FILES[name]
    pipeline(tmp_path)
    (tmp_path / "changes" / "1.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(tmp_path, command, code, said)
    assert people(tmp_path) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("command", [*COMMANDS, ("status",)])
@pytest.mark.parametrize(
    ("dsn", "code"),
    [
        ("sqlite:nowhere/crm.db", 6),
        ("sqlite:changes", 6),
        ("postgresql://me:pa55@127.0.0.1:1/db", 6),
        ("postgresql://me:pa55@127.0.0.1:1x/db", 6),
        ("postgresql://me:pa55%zz@127.0.0.1:1/db", 2),
        ("postgresql://me:pa55@127.0.0.1:1/db?pasword=pa55", 2),
        ("postgresql://me:pa@55@127.0.0.1:1/db", 2),
        ("mysql://me:pa55@127.0.0.1:1/db", 6),
        ("mysql://me:pa55@127.0.0.1:x/db", 2),
    ],
)
def test_a_target_that_does_not_answer(tmp_path: Path, command: tuple[str, ...], dsn: str, code: int) -> None:
    """One message, without the password."""
    pipeline(tmp_path, dsn=dsn)
    bring(tmp_path, "1", SWAP)
    before = state_of(tmp_path)
    ran = sync(tmp_path, *command)
    assert ran.code == code, ran.out + ran.err
    assert "Traceback" not in ran.err
    assert "pa55" not in ran.out + ran.err
    assert state_of(tmp_path) == before


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """Left as it is."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    (tmp_path / "crm.db").write_text("not a database, whatever its name says\n" * 100)
    for command in (*COMMANDS, ("status",)):
        before = state_of(tmp_path)
        ran = sync(tmp_path, *command)
        assert ran.code in (2, 6), ran.err
        assert "not a database" in ran.err
        assert "Traceback" not in ran.err
        assert state_of(tmp_path) == before


def test_what_is_asked_for_must_be_there(tmp_path: Path) -> None:
    """A name, files, one pace; a file without databases, and streams of a file that has none."""
    pipeline(tmp_path)
    before = state_of(tmp_path)
    for command in (*COMMANDS, ("run",)):
        refused(tmp_path, command, 6, "no file of changes exists")
    assert state_of(tmp_path) == before
    refused(tmp_path, ("plan", "cmr"), 2, "there is no sync 'cmr'", "The syncs are: crm")
    assert lakegate("dead-letters", "list", "cmr", "--spec", tmp_path).code == 2
    refused(tmp_path, ("run", "--once", "--until-idle"), 2, "exclude each other")
    ran = lakegate("run", "--spec", tmp_path)
    assert (ran.code, "the file has no stream" in ran.err) == (2, True)
    text = "name: p\ntables: {t: {path: ./t}}\nstreams: {m: {table: t, maintain: {optimize: true}}}\n"
    (tmp_path / "lakegate.yml").write_text(text)
    for command in (("plan",), ("run", "--once"), ("status",)):
        refused(tmp_path, command, 2, "lakegate.yml has no section")


def test_check_meets_source_and_target_without_spark(tmp_path: Path) -> None:
    """Each fault has its line; a file with nothing but syncs starts no Spark."""
    pipeline(tmp_path)
    (tmp_path / "crm.db").rename(tmp_path / "other.db")
    before = state_of(tmp_path)
    ran = lakegate("check", "--output", "json", "--spec", tmp_path)
    assert ran.code == 6
    told = [(one["where"].rpartition("lakegate.yml:")[2], one["what"]) for one in ran.json["findings"]]
    assert [where for where, what in told if "change" in what or "database" in what] == [
        "4: sync.crm.from",
        "5: sync.crm.to",
    ]
    assert state_of(tmp_path) == before
    (tmp_path / "other.db").rename(tmp_path / "crm.db")
    bring(tmp_path, "1", SWAP)
    ran = lakegate("check", "--spec", tmp_path)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "p: 0 streams, 1 syncs, 0 faults")


def test_a_batch_that_was_begun_and_cannot_be_read_again(tmp_path: Path) -> None:
    """Nothing is applied on top of a part."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    sync(tmp_path, "run", "--once")
    execute(tmp_path, "UPDATE lakegate_stream SET pending = 2")
    bring(tmp_path, "2", CLASH)
    refused(tmp_path, ("plan",), 2, "an unfinished batch ends")
    refused(tmp_path, ("run", "--once"), 2, "an unfinished batch ends")
    assert "begun" in sync(tmp_path, "status").out


def test_run_takes_syncs_by_name_and_behind_the_streams(tmp_path: Path) -> None:
    """A sync is a process of its own, without Spark; the report lists it together with the streams."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    with (tmp_path / "lakegate.yml").open("a") as file:
        file.write("tables: {t: {path: ./t}}\nstreams: {One: {table: t, source: {files: ./in}, append: {}}}\n")
    ran = lakegate("run", "crm", "--once", "--output", "json", "--spec", tmp_path)
    assert ran.code == 0, ran.err
    assert ran.json["streams"] == []
    assert [(one["sync"], one["batches"], one["position"]) for one in ran.json["syncs"]] == [("crm", 1, 1)]
    assert people(tmp_path) == [(1, "b"), (2, "a"), (3, "c")]
    refused = lakegate("run", "nobody", "--spec", tmp_path)
    assert (refused.code, "The streams are: One, crm" in refused.err) == (2, True)


def test_the_function_goes_on_where_the_command_was(tmp_path: Path) -> None:
    """`lakegate.sync` is the same sync if it has the same two names; columns that the target lacks are left out or added."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    assert sync(tmp_path, "run", "--once").code == 0
    more = [
        change(5, "5", "u", None, {**person(1, "b"), "n": 7, "never": None}),
        change(6, "6", "d", person(2, "a"), None),
    ]
    bring(tmp_path, "2", more)
    keys: dict[str, Any] = {"to": f"sqlite:{tmp_path / 'crm.db'}", "name": "crm", "pipeline": "p"}
    source = {"files": str(tmp_path / "changes" / "*.jsonl")}
    with pytest.raises(InvalidRequest, match=r"a column that the target table does not have.*position=5"):
        lg.sync(source, **keys)
    report = lg.sync(source, **keys, on_schema_change="add_columns")
    assert (report.batches, report.changes, report.position) == (1, 2, 6)
    assert execute(tmp_path, "SELECT * FROM people ORDER BY id") == [(1, "b", 7), (3, "c", None)]
    assert lg.sync(source, **keys).batches == 0
    bring(tmp_path, "3", [change(7, "7", "u", None, {**person(3, "d"), "other": 1})])
    assert lg.sync(source, **keys, on_schema_change="ignore", once=True).rows == 1
    assert execute(tmp_path, "SELECT * FROM people ORDER BY id") == [(1, "b", 7), (3, "d", None)]


def test_no_command_of_sync_brings_spark_in(tmp_path: Path) -> None:
    """They start in a moment, on machines that have no Java."""
    pipeline(tmp_path)
    bring(tmp_path, "1", SWAP)
    for command in ("sync plan", "sync run --once", "sync status", "dead-letters list NAME"):
        command = command.replace("NAME", "crm")
        program = (
            "import sys, atexit\n"
            "atexit.register(lambda: print('pyspark' in sys.modules, file=sys.stderr))\n"
            f"sys.argv = ['lakegate', *{command.split()!r}, '--spec', {str(tmp_path)!r}]\n"
            "from lakegate.cli.app import run\nrun()\n"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert ran.stderr.splitlines()[-1] == "False", command


def test_verify_finds_what_was_planted_and_ends_with_4(tmp_path: Path) -> None:
    """Clean after a run; then a value, a row too many and a row too few; for people and for machines, without row values."""
    pipeline(tmp_path)
    execute(tmp_path, "DELETE FROM people")
    bring(tmp_path, "1", [change(n, "0", "c", None, person(n + 1, "abc"[n])) for n in range(3)])
    assert sync(tmp_path, "run", "--once").code == 0
    clean = sync(tmp_path, "verify", "--output", "json")
    assert (clean.code, clean.json["syncs"][0]["differences"], clean.json["syncs"][0]["position"]) == (0, 0, 2)
    execute(
        tmp_path, "DELETE FROM people WHERE id = 3", "UPDATE people SET email = 'secret' WHERE id = 1",
        "INSERT INTO people VALUES (9, 'i')",
    )  # fmt: skip
    before = state_of(tmp_path)
    found = sync(tmp_path, "verify")
    assert found.code == 4
    assert "crm: 3 differences as of position 2 (batch 1)" in found.out
    for line in ("different  people [1]: email", "missing  people [3]", "extra  people [9]"):
        assert line in found.out
    assert "secret" not in found.out + found.err
    (table,) = sync(tmp_path, "verify", "--output", "json").json["syncs"][0]["tables"]
    assert [one["kind"] for one in table["listed"]] == ["different", "missing", "extra"]
    assert state_of(tmp_path) == before
