"""Turns around real queries and real tables: limits, lost coordinators, foreign writers, and jobs written already."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lakegate
from harness import contender
from harness.proxy import Proxy
from lakegate.delta.ownership import release
from lakegate.demo.servers import ZookeeperNode, zookeeper
from lakegate.errors import CheckpointMismatch, InvalidRequest, LostTurn
from lakegate.ids import JobName, TableLocation
from lakegate.pipeline import PipelineRun
from lakegate.spark.java import JavaSources
from lakegate.telemetry.ledger_days import read_ledger
from lakegate.turns.stores.sqlite import SqliteTurnStore
from tests.acceptance.engagement import drop
from tests.acceptance.people import ids, people
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def node(java_from: JavaSources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperNode]:
    """One ZooKeeper server for this module; each test has roots of its own."""
    with zookeeper(tmp_path_factory.mktemp("zookeeper"), java=java_from) as (node,):
        yield node


def pipeline(root: Path, *, lock: str = "L", turn_limit: int = 10, url: str | None = None) -> lakegate.Pipeline:
    """Three streams over `root/in`, one file a batch."""
    made = lakegate.Pipeline("people", storage=str(root / "_lakegate"), coordinator=url)
    table = made.table(
        "people", path=str(root / "table"), lock=lock, properties={"delta.enableDeletionVectors": "true"}
    )
    table.append(
        name="Ingestion",
        source=lakegate.files(str(root / "in/ingest"), schema="id BIGINT, person STRING"),
        max_rows_per_batch=1,
        turn_limit={"batches": turn_limit},
    )
    table.mutate(
        name="Mutation",
        source=lakegate.files(str(root / "in/mutation"), schema="old STRING, new STRING"),
        match={"person": "old"},
        set={"person": "new"},
        applies_to="arrived_and_later",
    )
    table.erase(
        name="TTL",
        source=lakegate.files(str(root / "in/delete"), schema="person STRING"),
        match={"person": "person"},
    )
    return made


def make_folders(root: Path) -> None:
    """The sources' folders."""
    for kind in ("ingest", "mutation", "delete"):
        (root / "in" / kind).mkdir(parents=True)


@pytest.mark.slow
def test_a_backlog_gives_the_turn_to_others_after_its_limit(spark: SparkSession, tmp_path: Path) -> None:
    """Seven files and two batches a turn make four turns; each batch is written once."""
    make_folders(tmp_path)
    for number in range(7):
        drop(tmp_path / "in", "ingest", number, people(number * 10, 10))
    report = pipeline(tmp_path, turn_limit=2).run("Ingestion", until_idle=True, spark=spark)["Ingestion"]
    assert ids(spark, tmp_path) == list(range(70))
    assert (report.turns, report.batches) == (4, 7)
    rows = read_ledger(tmp_path / "_lakegate", "L")
    assert [row.batches for row in rows] == [(0, 1), (2, 3), (4, 5), (6, 6)]
    assert [row.epoch for row in rows] == list(range(1024, 1028))
    # One entry commit, of the first turn: a batch that was planned when a turn reached its limit needs no other.
    history = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}/table`").orderBy("version").select("operation").collect()
    assert [row.operation for row in history] == ["CREATE TABLE", "UPDATE", *["WRITE"] * 7]


@pytest.mark.slow
def test_turns_go_on_above_every_epoch_when_the_lock_database_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is written twice, and the new record starts far above what the table has seen."""
    make_folders(tmp_path)
    drop(tmp_path / "in", "ingest", 0, people(0, 10))
    pipeline(tmp_path).run("Ingestion", once=True, spark=spark)
    for file in (tmp_path / "_lakegate").glob("turns.db*"):
        if file.is_file():
            file.unlink()
    drop(tmp_path / "in", "ingest", 1, people(10, 10))
    pipeline(tmp_path).run("Ingestion", once=True, spark=spark)
    assert ids(spark, tmp_path) == list(range(20))
    epochs = [row.epoch for row in read_ledger(tmp_path / "_lakegate", "L") if row.epoch is not None]
    assert epochs == [1024, 1024 + 1024]


def test_a_table_of_another_lock_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Jobs of another lock would not see the turns of the first; nothing is written."""
    make_folders(tmp_path)
    drop(tmp_path / "in", "ingest", 0, people(0, 10))
    pipeline(tmp_path).run("Ingestion", once=True, spark=spark)
    drop(tmp_path / "in", "ingest", 1, people(10, 10))
    with pytest.raises(InvalidRequest, match="another lock"):
        pipeline(tmp_path, lock="OTHER").run("Ingestion", once=True, spark=spark)
    assert ids(spark, tmp_path) == list(range(10))


def test_a_stream_that_computes_ahead_is_not_idle_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    """Else its successors would pass it while it has a batch in hand."""
    make_folders(tmp_path)
    store, is_idle = SqliteTurnStore(tmp_path / "turns.db"), list[bool]()
    made = lakegate.Pipeline(
        "people", storage=str(tmp_path / "_lakegate"), coordinator=f"sqlite:{tmp_path / 'turns.db'}"
    )
    table = made.table("people", path=str(tmp_path / "table"), lock="L")

    @table.append(
        name="Ingestion",
        source=lakegate.files(str(tmp_path / "in/ingest"), schema="id BIGINT, person STRING"),
        coverage="publish",
    )
    def looks_at_the_record(records: DataFrame) -> DataFrame:
        record = store.read("L").record
        is_idle.append(record is not None and record.job(JobName("Ingestion")).idle_since_ms is not None)
        return records

    for batch in range(2):
        drop(tmp_path / "in", "ingest", batch, people(batch * 10, 10))
        made.run(once=True, spark=spark)
        record = store.read("L").record
        assert record is not None
        assert record.job(JobName("Ingestion")).idle_since_ms is not None
    store.close()
    assert ids(spark, tmp_path) == list(range(20))
    assert (len(is_idle) >= 2, any(is_idle)) == (True, False)


@pytest.mark.matrix
def test_a_run_until_idle_does_not_go_by_what_was_said_in_an_earlier_one(spark: SparkSession, tmp_path: Path) -> None:
    """A stream without data of its own waits until the other has written, meets the new rows, and both end."""
    make_folders(tmp_path)
    made = lakegate.Pipeline("people", storage=str(tmp_path / "_lakegate"))
    table = made.table(
        "people", path=str(tmp_path / "table"), lock="L", properties={"delta.enableDeletionVectors": "true"}
    )

    @table.append(
        name="Ingestion", source=lakegate.files(str(tmp_path / "in/ingest"), schema="id BIGINT, person STRING")
    )
    def gives_the_other_time_to_end(records: DataFrame) -> DataFrame:
        for thread in threading.enumerate():
            if thread.name == "lakegate-Mutation":
                thread.join(5)  # it should not
        return records

    table.mutate(
        name="Mutation",
        after="Ingestion",
        source=lakegate.files(str(tmp_path / "in/mutation"), schema="old STRING, new STRING"),
        match={"person": "old"},
        set={"person": "new"},
        applies_to="arrived",
    )

    def run_ends() -> bool:
        run = PipelineRun(made.build(base_dir=tmp_path), spark=spark)
        thread = threading.Thread(target=run.run, args=("until_idle",))
        thread.start()
        thread.join(180)
        has_ended = not thread.is_alive()
        run.stop()
        thread.join()
        return has_ended

    drop(tmp_path / "in", "mutation", 0, pa.table({"old": ["p1"], "new": ["q"]}))
    drop(tmp_path / "in", "ingest", 0, people(0, 1))
    assert run_ends()
    drop(tmp_path / "in", "ingest", 1, people(10, 1))
    assert run_ends()
    rows = spark.read.format("delta").load(str(tmp_path / "table")).select("id", "person").collect()
    assert sorted(map(tuple, rows)) == [(0, "p0"), (10, "q")]


@pytest.mark.slow
def test_a_stream_waits_for_one_of_its_run_that_is_not_alive_yet(spark: SparkSession, tmp_path: Path) -> None:
    """Beyond its `lock_timeout`: the other has its process, and no session before its Spark is up."""
    make_folders(tmp_path)
    made = lakegate.Pipeline("people", storage=str(tmp_path / "_lakegate"))
    table = made.table(
        "people", path=str(tmp_path / "table"), lock="L", properties={"delta.enableDeletionVectors": "true"}
    )
    table.append(
        name="Ingestion", source=lakegate.files(str(tmp_path / "in/ingest"), schema="id BIGINT, person STRING")
    )
    table.mutate(
        name="Mutation",
        after="Ingestion",
        source=lakegate.files(str(tmp_path / "in/mutation"), schema="old STRING, new STRING"),
        match={"person": "old"},
        set={"person": "new"},
        applies_to="arrived",
    )
    spec = made.build(base_dir=tmp_path)
    coordinator = spec.coordinator.model_copy(update={"lock_timeout_ms": 500})
    spec = spec.model_copy(update={"coordinator": coordinator})
    drop(tmp_path / "in", "ingest", 0, people(0, 1))
    drop(tmp_path / "in", "mutation", 0, pa.table({"old": ["p0"], "new": ["q"]}))
    both = ("Ingestion", "Mutation")
    runs = {name: PipelineRun(spec, [name], among=both, idle_run="r", spark=spark) for name in both}
    waits = threading.Thread(target=runs["Mutation"].run, args=("until_idle",))
    waits.start()
    deadline_s = time.monotonic() + 120
    while sum(row.outcome == "gave_up" for row in read_ledger(tmp_path / "_lakegate", "L")) < 2:
        assert waits.is_alive(), "it has ended"
        assert time.monotonic() < deadline_s, "it has never asked"
        time.sleep(0.1)
    runs["Ingestion"].run("until_idle")
    waits.join()
    rows = spark.read.format("delta").load(str(tmp_path / "table")).select("id", "person").collect()
    assert list(map(tuple, rows)) == [(0, "q")]


@pytest.mark.slow
@pytest.mark.zookeeper
def test_a_table_that_takes_its_turns_elsewhere_is_refused_until_they_have_moved(
    spark: SparkSession, node: ZookeeperNode, tmp_path: Path
) -> None:
    """A well-formed wrong chroot: two drivers on two of them would not wait for each other. The note is taken off to move."""
    make_folders(tmp_path)
    right, wrong = (f"zookeeper://{node.address}/{uuid.uuid4().hex}" for _ in range(2))
    drop(tmp_path / "in", "ingest", 0, people(0, 10))
    pipeline(tmp_path, url=right).run("Ingestion", once=True, spark=spark)
    drop(tmp_path / "in", "ingest", 1, people(10, 10))
    versions = sorted(path.name for path in (tmp_path / "table/_delta_log").glob("*.json"))
    job = lakegate.JobCoordinator(
        spark, name="Own", lock="L", url=wrong, storage=str(tmp_path / "_lakegate"), tables=[str(tmp_path / "table")]
    )
    with pytest.raises(InvalidRequest, match="at another coordinator; nothing was written") as refused, job.turn():
        pass
    job.close()
    with pytest.raises(InvalidRequest, match="at another coordinator; nothing was written"):
        pipeline(tmp_path, url=wrong).run("Ingestion", once=True, spark=spark)
    assert (refused.value.exit_code, right in str(refused.value), wrong in str(refused.value)) == (2, True, True)
    assert sorted(path.name for path in (tmp_path / "table/_delta_log").glob("*.json")) == versions
    assert release(spark, TableLocation(str(tmp_path / "table")))
    pipeline(tmp_path, url=wrong).run("Ingestion", once=True, spark=spark)
    with pytest.raises(InvalidRequest, match="at another coordinator; nothing was written"):
        pipeline(tmp_path, url=right).run("Ingestion", once=True, spark=spark)
    assert ids(spark, tmp_path) == list(range(20))
    epochs = [row.epoch for row in read_ledger(tmp_path / "_lakegate", "L") if row.epoch is not None]
    assert epochs == [1024, 1024 + 1024]


@pytest.mark.slow
def test_a_deleted_checkpoint_is_refused_until_it_is_meant(spark: SparkSession, tmp_path: Path) -> None:
    """Then the source comes again; nothing is skipped in silence."""
    import shutil

    make_folders(tmp_path)
    drop(tmp_path / "in", "ingest", 0, people(0, 10))
    pipeline(tmp_path).run("Ingestion", once=True, spark=spark)
    shutil.rmtree(tmp_path / "_lakegate/checkpoints/Ingestion")
    with pytest.raises(CheckpointMismatch, match="--new-checkpoint"):
        pipeline(tmp_path).run("Ingestion", once=True, spark=spark)
    assert ids(spark, tmp_path) == list(range(10))
    pipeline(tmp_path).run("Ingestion", once=True, spark=spark, new_checkpoints=["Ingestion"])
    assert ids(spark, tmp_path) == sorted([*range(10), *range(10)])


@pytest.mark.matrix
def test_writers_without_turns_in_the_middle_harm_no_stream(spark: SparkSession, tmp_path: Path) -> None:
    """OPTIMIZE and DELETE by hand, time and again while all three kinds work: every statement gets through in the end."""
    make_folders(tmp_path)
    for number in range(3):
        drop(tmp_path / "in", "ingest", number, people(number * 100, 100))
    drop(tmp_path / "in", "mutation", 0, pa.table({"old": ["p1", "p11"], "new": ["q1", "q11"]}))
    drop(tmp_path / "in", "delete", 0, pa.table({"person": ["p2", "q1"]}))
    streams = pipeline(tmp_path)
    streams.run("Ingestion", once=True, spark=spark)
    stop, faults = threading.Event(), []
    foreign = spark.newSession()

    def disturb() -> None:
        number = 290
        while not stop.is_set():
            try:
                foreign.sql(f"DELETE FROM delta.`{tmp_path / 'table'}` WHERE id = {number}")
                foreign.sql(f"OPTIMIZE delta.`{tmp_path / 'table'}`")
                number = min(number + 1, 299)
            except Exception as error:  # the foreign writer takes its chances, as it always did
                if "Concurrent" not in str(error) and "CONCURRENT" not in str(error):
                    faults.append(error)
            stop.wait(2)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        drop(tmp_path / "in", "ingest", 3, people(300, 50))
        for name in ("Ingestion", "Mutation", "TTL"):
            streams.run(name, once=True, spark=spark)
    finally:
        stop.set()
        thread.join()
    streams.run(until_idle=True, spark=spark)
    assert not faults
    gone = {*range(20, 30), *range(10, 20)}
    left = [id_ for id_ in ids(spark, tmp_path) if id_ < 290 or id_ >= 300]
    assert left == [id_ for id_ in [*range(290), *range(300, 350)] if id_ not in gone]


# ------------------------------------------------------------------------------------------------ jobs written already


class Written:
    """A query of the user's own over `root/in/own`."""

    def __init__(self, spark: SparkSession, root: Path, url: str | None = None) -> None:
        self.spark, self.root = spark, root
        spark.createDataFrame([], "id BIGINT, person STRING").write.format("delta").save(str(root / "table"))
        (root / "in/own").mkdir(parents=True)
        self.job = lakegate.JobCoordinator(
            spark, name="Own", lock="L", url=url, storage=str(root / "_lakegate"), tables=[str(root / "table")]
        )

    def append(self, batch: DataFrame, batch_id: int) -> None:
        """One write."""
        batch.write.format("delta").mode("append").save(str(self.root / "table"))

    def query(self, function: Callable[[DataFrame, int], None]) -> Callable[[], DataStreamWriter]:
        """Returns the query that `supervise` takes."""

        def make() -> DataStreamWriter:
            frame = self.spark.readStream.schema("id BIGINT, person STRING").parquet(str(self.root / "in/own"))
            writer = frame.writeStream.foreachBatch(lakegate.coordinated(function, self.job))
            return writer.option("checkpointLocation", str(self.root / "checkpoint"))

        return make


@pytest.fixture
def written(spark: SparkSession, tmp_path: Path) -> Iterator[Written]:
    """A job of the user's own, ended after the test."""
    made = Written(spark, tmp_path)
    yield made
    made.job.close()


def test_a_function_that_fails_after_its_write_is_not_written_again(written: Written) -> None:
    """The batch comes again, its token says that it is there, and Spark's commit log follows."""
    drop(written.root / "in", "own", 0, people(0, 10))
    calls: list[int] = []

    def fails_once(batch: DataFrame, batch_id: int) -> None:
        written.append(batch, batch_id)
        calls.append(batch_id)
        if len(calls) == 1:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        lakegate.supervise(written.query(fails_once), written.job, once=True)
    report = lakegate.supervise(written.query(fails_once), written.job, once=True)
    assert ids(written.spark, written.root) == list(range(10))
    assert (report.turns, calls) == (1, [0, 0])
    outcomes = [row.outcome for row in read_ledger(written.root / "_lakegate", "L")]
    assert outcomes == ["failed", "replayed"]


@pytest.mark.matrix
def test_what_a_function_meets_when_its_turn_is_lost_does_not_end_the_job(written: Written) -> None:
    """The query is stopped in the middle of its work, which may fail in any way: the batch runs again in the next turn."""
    drop(written.root / "in", "own", 0, people(0, 10))
    calls: list[int] = []

    def is_interrupted_once(batch: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        if len(calls) == 1:
            losing = threading.Thread(target=written.job._lost, args=("a test says so",))
            losing.start()
            losing.join(30)
            raise RuntimeError("interrupted")
        written.append(batch, batch_id)

    lakegate.supervise(written.query(is_interrupted_once), written.job, until_idle=True)
    assert ids(written.spark, written.root) == list(range(10))
    outcomes = [row.outcome for row in read_ledger(written.root / "_lakegate", "L")]
    assert (calls, outcomes) == ([0, 0], ["lost", "completed"])


@pytest.mark.slow
def test_a_second_write_needs_a_step(written: Written) -> None:
    """Without one it is refused, not skipped in silence; with steps both are written, and once."""
    drop(written.root / "in", "own", 0, people(0, 10))

    def twice(batch: DataFrame, batch_id: int) -> None:
        written.append(batch, batch_id)
        written.append(batch, batch_id)

    with pytest.raises(InvalidRequest, match="without a step"):
        lakegate.supervise(written.query(twice), written.job, once=True)
    assert ids(written.spark, written.root) == list(range(10))

    drop(written.root / "in", "own", 1, people(10, 10))

    def stepwise(batch: DataFrame, batch_id: int) -> None:
        with written.job.turn(batch_id) as turn:
            assert turn.epoch >= 1024
            with turn.step("first"):
                written.append(batch.where("id >= 10"), batch_id)
            with turn.step("second"):
                written.append(batch.where("id >= 10").selectExpr("id + 100 AS id", "person"), batch_id)

    lakegate.supervise(written.query(stepwise), written.job, until_idle=True)
    lakegate.supervise(written.query(stepwise), written.job, once=True)
    assert ids(written.spark, written.root) == [*range(20), *range(110, 120)]


@pytest.mark.slow
def test_a_write_after_a_step_without_one_is_refused(written: Written) -> None:
    """Its number would be below the step's, and Delta would skip it in silence."""
    drop(written.root / "in", "own", 0, people(0, 10))

    def mixed(batch: DataFrame, batch_id: int) -> None:
        with written.job.turn(batch_id) as turn, turn.step("first"):
            written.append(batch, batch_id)
        written.append(batch, batch_id)

    with pytest.raises(InvalidRequest, match="without a step"):
        lakegate.supervise(written.query(mixed), written.job, once=True)
    assert ids(written.spark, written.root) == list(range(10))


def test_what_a_function_has_left_running_commits_nothing_after_its_turn(written: Written) -> None:
    """The gate knows the holder: a thread that continues in the batch's session is refused; a writer without turns is not."""
    drop(written.root / "in", "own", 0, people(0, 10))
    left: list[SparkSession] = []

    def leaves(batch: DataFrame, batch_id: int) -> None:
        written.append(batch, batch_id)
        left.append(batch.sparkSession)

    lakegate.supervise(written.query(leaves), written.job, once=True)
    insert = f"INSERT INTO delta.`{written.root / 'table'}` VALUES ({{}}, 'late')"
    with pytest.raises(Exception, match="was refused: nobody has the turn"):
        left[0].sql(insert.format(98))
    written.spark.sql(insert.format(99))
    assert ids(written.spark, written.root) == [*range(10), 99]


def test_a_coordinated_function_in_any_other_query_is_refused(written: Written) -> None:
    """Otherwise no code would give the turn back when Spark's commit log is written."""
    drop(written.root / "in", "own", 0, people(0, 10))
    query = written.query(written.append)().trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"lakegate\.supervise"):
        query.awaitTermination()
    assert ids(written.spark, written.root) == []


def test_a_block_of_code_takes_a_turn_of_its_own(written: Written) -> None:
    """lock, register and unlock as in the article; a block under a number that was written before is skipped."""
    rows = written.spark.createDataFrame([(1, "a")], "id BIGINT, person STRING")
    for _ in range(2):
        with written.job.turn(7):
            written.append(rows, 7)
    assert ids(written.spark, written.root) == [1]
    turn = written.job.lock(timeout=5)
    assert written.job.register() == "Own"
    written.append(rows.selectExpr("id + 1 AS id", "person"), 8)
    assert [written.job.unlock(), written.job.unlock()] == [True, False]
    assert ids(written.spark, written.root) == [1, 2]
    assert (turn.lock, turn.name, turn.epoch, turn.predecessor) == ("L", "Own", 1026, "Own")


JVM_GONE = """
import os, signal, sys
import lakegate
root, spark = sys.argv[1], lakegate.session("gone")
spark.range(1).write.format("delta").save(root + "/table")
job = lakegate.JobCoordinator(spark, name="Own", lock="L", storage=root + "/_lakegate", tables=[root + "/table"])
try:
    with job.turn(0):
        os.kill(spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
        if sys.argv[2] == "Spark":
            spark.range(1).count()
        raise ValueError
except Exception as error:
    print("ended by", type(error).__name__, flush=True)
sys.stdin.read()
job.close()
print("closed", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended_by", "expected"), [("Spark", ""), pytest.param("the code", "ValueError", marks=pytest.mark.matrix)]
)
def test_a_turn_is_given_back_when_the_jvm_is_gone(ended_by: str, expected: str, tmp_path: Path) -> None:
    """Killed by the kernel, or out of memory: the Python process that is left has nothing that could commit."""
    process = subprocess.Popen(
        [sys.executable, "-c", JVM_GONE, str(tmp_path), ended_by],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"ended by {expected}")
        other = contender.coordinator(SqliteTurnStore(tmp_path / "_lakegate/turns.db"), "L", "Other", timeout_s=20)
        contender.take(other).complete()
        other.close()
        assert process.communicate(timeout=60)[0] == "closed\n"
    finally:
        process.kill()
        process.wait()


def for_hours(spark: SparkSession) -> object:
    """A Spark job of one task that counts for hours."""
    return spark.range(0, 10**15, 1, 1).selectExpr("sum(id % 7)").collect()


@pytest.mark.slow
@pytest.mark.zookeeper
def test_the_spark_jobs_of_a_block_end_when_its_turn_is_lost(
    spark: SparkSession, node: ZookeeperNode, tmp_path: Path
) -> None:
    """In the middle, also those that are started afterwards; jobs of other threads go on, and the user's own marks stay."""
    context, status = spark.sparkContext, spark.sparkContext.statusTracker()
    ended: list[str] = []

    def other() -> None:
        context.setJobGroup("other", "of a thread that has no turn")
        with suppress(Exception):
            for_hours(spark)
        ended.append("other")

    def work(written: Written) -> None:
        with written.job.turn():
            for thread in threads:
                thread.start()
            with pytest.raises(Exception, match="cancelled"):
                for_hours(spark)
            network.be("pass")
            for_hours(spark)

    with Proxy(node.port) as network:
        url = f"zookeeper://{network.address}/{uuid.uuid4().hex}?session_timeout=3s&call_timeout=20s"
        written = Written(spark, tmp_path, url)

        def cut() -> None:
            wait_until(lambda: any(job in status.getActiveJobsIds() for job in status.getJobIdsForGroup("mine")))
            network.be("blackhole")

        threads = [threading.Thread(target=other), threading.Thread(target=cut)]
        context.setJobGroup("mine", "of the user")
        context.addJobTag("mine-too")
        try:
            with pytest.raises(LostTurn, match=r"no heartbeat was answered.*Spark jobs were cancelled"):
                work(written)
            assert set(context.getJobTags()) == {"mine-too"}
            assert context.getLocalProperty("spark.jobGroup.id") == "mine"
            assert not ended
            wait_until(lambda: status.getActiveJobsIds() == list(status.getJobIdsForGroup("other")))
        finally:
            context.cancelJobGroup("other")
            context.removeJobTag("mine-too")
            context.setLocalProperty("spark.jobGroup.id", None)
            for thread in threads:
                if thread.ident is not None:
                    thread.join(60)
        assert spark.range(5).count() == 5, "what comes after the turn is cancelled no more"
        with written.job.turn():
            written.append(spark.createDataFrame([(1, "a")], "id BIGINT, person STRING"), 0)
        written.job.close()
    assert ids(spark, tmp_path) == [1]
    assert [row.outcome for row in read_ledger(tmp_path / "_lakegate", "L")] == ["lost", "swept"]
