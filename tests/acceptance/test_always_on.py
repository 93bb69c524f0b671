"""Queries that stay on: a turn for each micro-batch, given back with Spark's commit log; whatever ends them, each batch once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lakegate
from lakegate.errors import InvalidRequest, LostTurn, TurnNotGranted, Unavailable
from lakegate.ids import JobName
from lakegate.runtime import open_store
from lakegate.telemetry.events import TurnEnded
from lakegate.telemetry.ledger_days import read_ledger
from lakegate.turns.protocol.lock_record import LockRecord
from tests.acceptance.engagement import drop
from tests.acceptance.people import ids, people
from tests.waiting import wait_until

WAIT_S = 60.0


class AlwaysOn:
    """Jobs with a folder each, on one table."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        spark.createDataFrame([], "id BIGINT, person STRING").write.format("delta").save(str(root / "table"))
        self.jobs: list[lakegate.JobCoordinator] = []
        self.store = open_store(f"sqlite:{root / '_lakegate/turns.db'}")

    def job(self, name: str, **keys: str) -> lakegate.JobCoordinator:
        (self.root / "in" / name).mkdir(parents=True)
        made = lakegate.JobCoordinator(
            self.spark,
            name=name,
            lock="L",
            storage=str(self.root / "_lakegate"),
            tables=[str(self.root / "table")],
            **keys,
        )
        self.jobs.append(made)
        return made

    def append(self, batch: DataFrame, batch_id: int) -> None:
        batch.write.format("delta").mode("append").save(str(self.root / "table"))

    def writer(
        self, job: lakegate.JobCoordinator, function: Callable[[DataFrame, int], None] | None = None
    ) -> DataStreamWriter:
        frame = self.spark.readStream.schema("id BIGINT, person STRING").parquet(str(self.root / "in" / job.name))
        writer = frame.writeStream.foreachBatch(lakegate.coordinated(function or self.append, job))
        return writer.option("checkpointLocation", str(self.root / "checkpoints" / job.name))

    def record(self) -> LockRecord:
        record = self.store.read("L").record
        assert record is not None
        return record

    def is_idle(self, name: str) -> bool:
        record = self.store.read("L").record
        return record is not None and record.job(JobName(name)).idle_since_ms is not None

    def turns(self, job: str) -> list[TurnEnded]:
        return [row for row in read_ledger(self.root / "_lakegate", "L") if row.job == job]

    def ids(self) -> list[int]:
        return ids(self.spark, self.root)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[AlwaysOn]:
    """A table and no jobs yet; queries that a test has left are stopped."""
    made = AlwaysOn(spark, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()
    for job in made.jobs:
        job.close()


def test_each_micro_batch_takes_a_turn_and_without_data_the_job_is_idle(lake: AlwaysOn) -> None:
    """Two queries run concurrently: their turns alternate as `strict` says, and a job reports idle before its first batch."""
    first, second = lake.job("First", predecessor="Second"), lake.job("Second", predecessor="First")
    running = [lakegate.start(lake.writer(job), job) for job in (first, second)]

    def have_had(turns: int) -> bool:
        return len(lake.turns("First")) == len(lake.turns("Second")) == turns

    wait_until(lambda: lake.is_idle("First") and lake.is_idle("Second"))
    for number in range(3):
        for offset, name in (
            (0, "Second"),
            (100, "First"),
        ):  # the files of Second are there first, and wait for First's turn
            drop(lake.root / "in", name, number, people(offset + number * 10, 10))
        wait_until(partial(have_had, number + 1))
    wait_until(lambda: lake.is_idle("First") and lake.is_idle("Second"))
    for each in running:
        each.stop()
        assert each.awaitTermination()
        assert not each.isActive
        assert (each.report.turns, each.report.batches) == (3, 3)
    rows = sorted([*lake.turns("First"), *lake.turns("Second")], key=lambda row: row.epoch or 0)
    assert {row.outcome for row in rows} == {"completed"}
    assert [row.batches for row in lake.turns("First")] == [(0, 0), (1, 1), (2, 2)]
    assert all(one.job != next_.job for one, next_ in pairwise(rows))
    assert lake.ids() == sorted([*range(30), *range(100, 130)])
    assert lake.record().holder is None


def test_a_turn_is_not_completed_before_the_commit_log_is_written(lake: AlwaysOn) -> None:
    """Where Spark cannot write it, the batch is in the table and not done: it comes again, and is not written twice."""
    job = lake.job("Own")
    drop(lake.root / "in", "Own", 0, people(0, 10))
    commits = lake.root / "checkpoints/Own/commits"

    def in_the_way(batch: DataFrame, batch_id: int) -> None:
        lake.append(batch, batch_id)
        commits.rmdir()
        commits.write_text("no folder")

    with pytest.raises(Unavailable, match="the query ended with an error"):
        lakegate.start(lake.writer(job, in_the_way), job).awaitTermination()
    assert [row.outcome for row in lake.turns("Own")] == ["failed"]
    commits.unlink()
    running = lakegate.start(lake.writer(job), job)
    wait_until(lambda: len(lake.turns("Own")) == 2)
    running.stop()
    assert [row.outcome for row in lake.turns("Own")] == ["failed", "replayed"]
    assert lake.ids() == list(range(10))


def test_a_turn_that_is_lost_ends_the_query(lake: AlwaysOn) -> None:
    """Its earlier writes stay, the batch is not done, and the next start completes it."""
    job = lake.job("Own")
    drop(lake.root / "in", "Own", 0, people(0, 10))

    def loses(batch: DataFrame, batch_id: int) -> None:
        lake.append(batch, batch_id)
        for file in (lake.root / "_lakegate").rglob("*Own*"):  # the session's file: how others know that it is alive
            if file.is_file() and "turns.db" in str(file):
                file.unlink()

    running = lakegate.start(lake.writer(job, loses), job)
    with pytest.raises(LostTurn, match="nothing more was written"):
        running.awaitTermination(WAIT_S)
    assert not running.query.isActive
    again = lakegate.start(lake.writer(job), job)
    wait_until(lambda: lake.is_idle("Own"))
    again.stop()
    assert [row.outcome for row in lake.turns("Own")] == ["lost", "replayed"]
    assert lake.ids() == list(range(10))


@pytest.mark.matrix
def test_a_query_that_waits_for_its_turn_can_be_stopped_and_gives_up_in_time(lake: AlwaysOn) -> None:
    """Neither leaves a ticket behind; the batch was not written, and comes again."""
    other, job = lake.job("Other"), lake.job("Own", lock_timeout="2s")
    drop(lake.root / "in", "Own", 0, people(0, 10))
    with other.turn():
        waits = lakegate.start(lake.writer(job), job)
        with pytest.raises(TurnNotGranted, match="within 2 s, and nothing was written"):
            waits.awaitTermination()
        waits = lakegate.start(lake.writer(job), job)
        wait_until(lambda: bool(lake.record().tickets))
        waits.query.stop()
        assert waits.awaitTermination()
        assert not lake.record().tickets
        assert lake.ids() == []
    running = lakegate.start(lake.writer(job), job)
    wait_until(lambda: lake.is_idle("Own"))
    running.stop()
    assert lake.ids() == list(range(10))


def test_async_progress_tracking_is_refused(lake: AlwaysOn) -> None:
    """Its commit log lags behind."""
    job = lake.job("Own")
    with pytest.raises(InvalidRequest, match="asyncProgressTrackingEnabled"):
        lakegate.start(lake.writer(job).option("asyncProgressTrackingEnabled", "true"), job)


KILLED = """
import os, signal, sys
import lakegate

root = sys.argv[1]
spark = lakegate.session("killed", conf={"spark.master": "local[1]", "spark.ui.enabled": "false"})
job = lakegate.JobCoordinator(spark, name="Own", lock="L", storage=f"{root}/_lakegate", tables=[f"{root}/table"])


def append(batch, batch_id):
    batch.write.format("delta").mode("append").save(f"{root}/table")
    if batch_id == 1:
        os.kill(os.getpid(), signal.SIGKILL)


frame = spark.readStream.schema("id BIGINT, person STRING").option("maxFilesPerTrigger", 1).parquet(f"{root}/in/Own")
writer = frame.writeStream.foreachBatch(lakegate.coordinated(append, job))
lakegate.start(writer.option("checkpointLocation", f"{root}/checkpoints/Own"), job).awaitTermination()
"""


def test_a_query_that_is_killed_after_its_write_loses_and_doubles_nothing(lake: AlwaysOn) -> None:
    """kill -9 between the commit of the second batch and Spark's commit log; the next start goes on from there."""
    job = lake.job("Own")
    for number in range(3):
        drop(lake.root / "in", "Own", number, people(number * 10, 10))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(lake.root)], env=dict(os.environ), check=False)
    assert ended.returncode == -signal.SIGKILL
    assert lake.ids() == list(range(20))
    running = lakegate.start(lake.writer(job), job)
    wait_until(lambda: lake.is_idle("Own"))
    running.stop()
    assert lake.ids() == list(range(30))
    assert [(row.outcome, row.batches) for row in lake.turns("Own")] == [
        ("completed", (0, 0)),
        ("lost", None),  # reported by the next run
        ("replayed", (1, 1)),
        ("completed", (2, 2)),
    ]


@pytest.mark.slow
def test_no_value_of_a_record_is_in_the_ledger_or_a_log(lake: AlwaysOn, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever ends a batch: the user's function, Spark, or the table. What is raised to the caller has the whole text."""
    job = lake.job("Own")
    drop(lake.root / "in", "Own", 0, people(0, 10))
    name = "Canary"
    table = f"delta.`{lake.root / 'table'}`"
    guard = lake.spark.newSession()
    guard.conf.set("spark.lakegate.outside", "pass")
    guard.sql(f"ALTER TABLE {table} ADD CONSTRAINT small CHECK (id < 1000)")

    def raises(batch: DataFrame, batch_id: int) -> None:
        raise ValueError(f"{name} cannot be reached")

    def casts(batch: DataFrame, batch_id: int) -> None:
        lake.append(batch.selectExpr("CAST(concat(person, id, 'Canary') AS BIGINT) AS id", "person"), batch_id)

    def breaks(batch: DataFrame, batch_id: int) -> None:
        lake.append(batch.selectExpr("id + 1000 AS id", "'Canary' AS person"), batch_id)

    with caplog.at_level("DEBUG", logger="lakegate"):
        for function in (raises, casts, breaks):
            with pytest.raises(Exception, match=r"Canary|CAST_INVALID_INPUT|CONSTRAINT|calling"):
                lakegate.start(lake.writer(job, function), job).awaitTermination()
    turns = lake.turns("Own")
    assert [row.outcome for row in turns] == ["failed"] * 3
    reasons = [row.reason or "" for row in turns]
    assert reasons[0] == f"ValueError in raises, test_always_on.py line {raises.__code__.co_firstlineno + 1}"
    assert "CAST_INVALID_INPUT" in reasons[1]
    assert "CONSTRAINT" in reasons[2]
    logged = "".join(record.getMessage() for record in caplog.records if record.name.startswith("lakegate"))
    assert "CAST_INVALID_INPUT" in logged
    ledger = "".join(file.read_text() for file in (lake.root / "_lakegate" / "ledger").rglob("*.jsonl"))
    assert name not in ledger + logged
