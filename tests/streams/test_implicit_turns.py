"""Tables in turns and writers without turns: the note next to the table refuses them, configuration lets them in."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakegate
from harness import contender
from lakegate.delta.gate import OUTSIDE_CONF
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.delta.ownership import adopt, release
from lakegate.errors import InvalidRequest, TurnNotGranted
from lakegate.ids import TableLocation
from lakegate.runtime import open_store
from lakegate.spark.jars import JarSources, fetch, own_jar
from lakegate.telemetry.ledger_days import read_ledger
from tests.delta.delta_tables import commit_paths, ids, make_table, rows


@pytest.fixture
def refusing(session: SparkSession) -> Iterator[SparkSession]:
    """A session as users have it."""
    with confs(session, {OUTSIDE_CONF: "refuse"}):
        yield session


@pytest.mark.slow
def test_a_commit_without_a_turn_is_refused_by_the_note_next_to_the_table(
    refusing: SparkSession, tmp_path: Path
) -> None:
    """Each commit reads the note, whichever process wrote it and when. A writer that needs no turns says so."""
    table = make_table(refusing, tmp_path / "t")
    one, name = rows(refusing, 1), f"delta.`{table}`"
    one.write.format("delta").mode("append").save(table)
    adopt(refusing, table, "L", "c", "link")
    with pytest.raises(JVM_ERRORS, match="was refused: nobody has the turn; the table takes turns on the lock L"):
        one.write.format("delta").mode("append").save(table)
    with pytest.raises(
        TurnNotGranted, match=r"lock L; nothing was written.*JobCoordinator.*spark\.lakegate\.outside=pass"
    ):
        lakegate.sql(refusing, f"DELETE FROM {name} WHERE id = 1")
    assert (ids(refusing, table), len(commit_paths(table))) == ([1], 2)
    with confs(refusing, {OUTSIDE_CONF: "pass"}):
        refusing.sql(f"OPTIMIZE {name}")
        rows(refusing, 2).write.format("delta").mode("append").save(table)
    release(refusing, table)
    rows(refusing, 3).write.format("delta").mode("append").save(table)
    note = Path(table, "_lakegate/table.json")
    note.parent.mkdir()
    note.write_text(json.dumps({"format": 1, "lock": "M"}))  # by another process
    with pytest.raises(JVM_ERRORS, match="on the lock M"):
        one.write.format("delta").mode("append").save(table)
    note.write_text("{}")
    with pytest.raises(JVM_ERRORS, match="names no lock; nothing was written"):
        one.write.format("delta").mode("append").save(table)
    assert ids(refusing, table) == [1, 2, 3]


def test_a_job_writes_a_governed_table_in_its_turn(refusing: SparkSession, tmp_path: Path) -> None:
    """Its entry commit is its own, too; what it does after its turn is refused."""
    table = make_table(refusing, tmp_path / "t")
    store = open_store(f"sqlite:{tmp_path / 's/turns.db'}")
    adopt(refusing, table, "L", store.coordinator_id(), "link")
    job = lakegate.JobCoordinator(refusing, name="J", lock="L", storage=str(tmp_path / "s"), tables=[table])
    with job.turn():
        rows(refusing, 1).write.format("delta").mode("append").save(table)
    with pytest.raises(JVM_ERRORS, match="nobody has the turn; the table takes turns on the lock L"):
        rows(refusing, 2).write.format("delta").mode("append").save(table)
    job.close()
    assert ids(refusing, table) == [1]


def test_a_job_with_another_lock_or_store_of_commits_than_the_note_is_refused(
    session: SparkSession, tmp_path: Path
) -> None:
    """Before it takes a turn; writers that do not see each other would all be let in."""
    for number, (lock, store, args) in enumerate([("M", "link", {}), ("L", "dynamodb", {"region": "r2"})]):
        table = make_table(session, tmp_path / f"t{number}")
        adopt(session, table, lock, "c", store, log_store_args=args)
        job = lakegate.JobCoordinator(session, name="J", lock="L", storage=str(tmp_path / "s"), tables=[table])
        with pytest.raises(InvalidRequest, match="nothing was written") as refused, job.turn():
            raise AssertionError("the turn was given")
        assert refused.value.exit_code == 2
        job.close()
    assert read_ledger(tmp_path / "s") == []


STOCK = """
import sys
import lakegate

root = sys.argv[1]
spark = lakegate.session("stock")
stream = spark.readStream.schema("id BIGINT, v STRING").parquet(f"{root}/in").writeStream.format("delta")
stream.option("checkpointLocation", f"{root}/checkpoint").trigger(availableNow=True).start(f"{root}/t").awaitTermination()
"""
LIMIT_S = 200


class Stock:
    """A job with a stock sink, and its configuration."""

    def __init__(self, root: Path, jars: JarSources) -> None:
        self.root, self.jars = root, ",".join(map(str, [own_jar(), *fetch(["delta"], sources=jars)]))
        (root / "job.py").write_text(STOCK)
        self.settings = {
            "spark.master": "local[1]",
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.lakegate.takeTurns": "true",
            "spark.job.coordinator.name": "Stock",
            "spark.job.coordinator.lock.name": "L",
            "spark.job.coordinator.priority": "3",
            "spark.job.coordinator.tables": str(root / "t"),
        }

    @contextlib.contextmanager
    def submit(self, *, is_in_file: bool) -> Iterator[subprocess.Popen[bytes]]:
        """Starts it with spark-submit; the settings by `--conf`, or in a properties file, and the storage in the environment."""
        given = [f"--conf={key}={value}" for key, value in self.settings.items()]
        if is_in_file:
            file = self.root / "job.properties"
            file.write_text("".join(f"{key} {value}\n" for key, value in self.settings.items()))
            given = ["--properties-file", str(file)]
        program = Path(sys.executable).with_name("spark-submit")
        storage = {"LAKEGATE_JOB_COORDINATOR_STORAGE": str(self.root / "s"), "PYSPARK_PYTHON": sys.executable}
        with (self.root / "log").open("w") as log:
            started = subprocess.Popen(
                [str(program), "--jars", self.jars, *given, str(self.root / "job.py"), str(self.root)],
                env={**os.environ, **storage},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield started
            assert started.wait(LIMIT_S) == 0, self.said()
        finally:
            started.kill()
            started.wait()

    def said(self) -> str:
        """The end of what it has said."""
        return (self.root / "log").read_text()[-3000:]


@pytest.mark.matrix
def test_a_stock_sink_takes_turns_by_configuration_alone(
    session: SparkSession, tmp_path: Path, jars_from: JarSources
) -> None:
    """It computes while another has the turn, and commits after it; a batch that comes again is there once."""
    table = make_table(session, tmp_path / "t")
    store = open_store(f"sqlite:{tmp_path / 's/turns.db'}")
    adopt(session, table, "L", store.coordinator_id(), "link")
    rows(session, 1, 2).write.parquet(str(tmp_path / "in"))
    other = contender.coordinator(store, "L", "Other", timeout_s=60)
    turn = contender.take(other)
    stock = Stock(tmp_path, jars_from)
    with stock.submit(is_in_file=False) as first:
        deadline_s = time.monotonic() + LIMIT_S
        while not (record := store.read("L").record) or not record.tickets:
            assert time.monotonic() < deadline_s, stock.said()
            assert first.poll() is None, stock.said()
            time.sleep(0.1)
        assert [(ticket.job, ticket.priority) for ticket in record.tickets] == [("Stock", 3)]
        assert ids(session, table) == []
        turn.complete()
    assert ids(session, table) == [1, 2]

    for file in (tmp_path / "checkpoint/commits").iterdir():
        file.unlink()  # as if it had been killed just after its commit
    rows(session, 3).write.mode("append").parquet(str(tmp_path / "in"))
    with stock.submit(is_in_file=True):
        pass
    assert ids(session, table) == [1, 2, 3]
    outcomes = [(row.job, row.outcome) for row in read_ledger(tmp_path / "s", "L")]
    assert outcomes == [("Stock", "completed")] * 2
    other.close()


def test_settings_of_a_running_session_make_a_coordinator(session: SparkSession, tmp_path: Path) -> None:
    """Builder conf; the environment goes before it."""
    table = make_table(session, tmp_path / "t")
    settings = {"name": "B", "lock.name": "L", "storage": str(tmp_path / "s"), "tables": str(table), "predecessor": "A"}
    with confs(session, {f"job.coordinator.{key}": value for key, value in settings.items()}):
        job = lakegate.JobCoordinator.from_conf(session)
    assert (job.name, job.tables) == ("B", (TableLocation(str(table)),))
    with job.turn() as turn:
        assert turn.predecessor is None
    job.close()
