"""A commit of a job in its turn carries the turn's token, whichever session makes it, or is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lakegate
from lakegate.delta.commit_file import commit_tokens
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.telemetry.events import Noticed
from tests.delta.delta_tables import commit_paths, ids, make_table, rows

NOT_TOKENED = "does not carry the token of the turn"


class Died(RuntimeError):
    """The function after its write, once."""


class Own:
    """A query of the user's own over `root/in`, whose function writes with the session outside and dies after its write, once."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.table = make_table(spark, root / "t")
        rows(spark, 1, 2).coalesce(1).write.parquet(str(root / "in"))
        self.job = lakegate.JobCoordinator(
            spark, name="J", lock="L", storage=str(root / "_lakegate"), tables=[self.table]
        )

    def run(self, write: Callable[[DataFrame], object], *, deaths: int = 1) -> None:
        """Until its function has not died."""
        left = [Died("after the write")] * deaths

        def function(batch: DataFrame, batch_id: int) -> None:
            write(batch)
            if left:
                raise left.pop()

        def query() -> DataStreamWriter:
            stream = self.spark.readStream.schema("id BIGINT, v STRING").parquet(str(self.root / "in"))
            writer = stream.writeStream.foreachBatch(lakegate.coordinated(function, self.job))
            return writer.option("checkpointLocation", str(self.root / "checkpoint"))

        for _ in range(deaths):
            with pytest.raises(Died):
                lakegate.supervise(query, self.job, once=True)
        lakegate.supervise(query, self.job, once=True)

    def tokened(self) -> list[bool]:
        """Returns for each commit whether it has a token."""
        return [bool(commit_tokens(path.read_text())) for path in commit_paths(self.table)]


@pytest.fixture
def own(session: SparkSession, tmp_path: Path) -> Iterator[Own]:
    """Ended after the test."""
    made = Own(session, tmp_path)
    yield made
    made.job.close()


@pytest.mark.matrix
def test_our_statements_in_the_session_outside_are_exactly_once(own: Own) -> None:
    """MERGE, SQL and an UPDATE, each in a step, in sessions that know nothing of the turn; the function dies three times."""
    spark, name = own.spark, f"delta.`{own.table}`"

    def write(batch: DataFrame) -> None:
        with own.job.turn() as turn:
            with turn.step("merge"):
                target = lakegate.DeltaTable.forPath(spark, own.table).alias("t")
                target.merge(batch.alias("s"), "t.id = s.id").whenNotMatchedInsertAll().execute()
            with turn.step("insert"):
                lakegate.sql(spark.newSession(), f"INSERT INTO {name} VALUES (9, 'x')")
            with turn.step("update"):
                result = lakegate.DeltaTable.forPath(spark, own.table).update("id = 9", {"v": "concat(v, 'y')"})
                assert result.is_superseded or result.rows == 1, "an earlier try made it, and this one left it out"

    own.run(write, deaths=2)
    assert sorted(tuple(row) for row in spark.read.format("delta").load(own.table).collect()) == [
        (1, "a"),
        (2, "a"),
        (9, "xy"),
    ]
    assert all(own.tokened()[1:]), "version 0 makes the table"


def test_a_second_write_without_a_step_is_refused_whatever_the_sessions(own: Own) -> None:
    """One of ours outside and a stock one in the batch's session, in both orders: the second is not skipped in silence."""

    def ours(batch: DataFrame) -> None:
        lakegate.sql(own.spark, f"INSERT INTO delta.`{own.table}` VALUES (9, 'x')")

    def stock(batch: DataFrame) -> None:
        batch.write.format("delta").mode("append").save(own.table)

    for first, second in ((ours, stock), (stock, ours), (ours, ours)):

        def both(batch: DataFrame, first: Callable[..., None] = first, second: Callable[..., None] = second) -> None:
            first(batch)
            second(batch)

        with pytest.raises(InvalidRequest, match="a second write without a step"):
            own.run(both, deaths=0)
    assert ids(own.spark, own.table) in ([9], [1, 2])


def test_a_stock_commit_without_the_token_is_refused(own: Own) -> None:
    """Whatever changes rows; also where the function catches the error. What only moves rows, or the definition, passes."""
    spark, name = own.spark, f"delta.`{own.table}`"
    rows(spark, 5).write.format("delta").mode("append").save(own.table)

    def stock_merge(batch: DataFrame) -> None:
        target = DeltaTable.forPath(spark, own.table).alias("t")
        target.merge(batch.sparkSession.range(1).alias("s"), "t.id > s.id").whenMatchedDelete().execute()

    def caught(batch: DataFrame) -> None:
        with pytest.raises(JVM_ERRORS, match=NOT_TOKENED):
            spark.sql(f"DELETE FROM {name} WHERE id = 5")

    refused: dict[str, Callable[[DataFrame], object]] = {
        "append": lambda batch: rows(spark, 6).write.format("delta").mode("append").save(own.table),
        "another session": lambda batch: (
            rows(spark.newSession(), 6).write.format("delta").mode("overwrite").save(own.table)
        ),
        "merge": stock_merge,
        "restore": lambda batch: spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 0"),
        "replace": lambda batch: spark.sql(f"CREATE OR REPLACE TABLE {name} USING delta AS SELECT 1L AS id, 'a' AS v"),
        "caught": caught,
    }
    for what, write in refused.items():
        with pytest.raises(InvalidRequest, match=NOT_TOKENED) as told:
            own.run(write, deaths=0)
        assert "batch.sparkSession" in str(told.value), what
        assert ids(spark, own.table) == [5], what

    def passes(batch: DataFrame) -> None:
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES (a = 'b')")
        spark.sql(f"OPTIMIZE {name}")
        batch.write.format("delta").mode("append").save(own.table)

    own.run(passes)
    assert ids(spark, own.table) == [1, 2, 5]


@pytest.mark.slow
def test_a_table_that_no_lock_governs_is_left_alone(own: Own, tmp_path: Path) -> None:
    """The function writes it with any session, in its turn on another one; it is at least once."""
    free = make_table(own.spark, tmp_path / "free")

    def write(batch: DataFrame) -> None:
        rows(own.spark, 7).write.format("delta").mode("append").save(free)
        lakegate.sql(own.spark, f"INSERT INTO delta.`{free}` VALUES (8, 'x')")
        batch.write.format("delta").mode("append").save(own.table)

    own.run(write)
    assert ids(own.spark, own.table) == [1, 2]
    assert ids(own.spark, free) == [7, 7, 8, 8]


def test_a_job_of_the_same_name_on_another_lock_does_not_lend_its_turn(own: Own, tmp_path: Path) -> None:
    """Two turns in one driver at the same time: a job that writes the other job's table does not have its token."""
    other_table = make_table(own.spark, tmp_path / "u")
    other = lakegate.JobCoordinator(
        own.spark.newSession(), name="J", lock="M", storage=str(tmp_path / "m"), tables=[other_table]
    )
    has_turn, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with other.turn():
            has_turn.set()
            is_over.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert has_turn.wait(300)
        with pytest.raises(InvalidRequest, match=NOT_TOKENED):
            own.run(lambda batch: batch.write.format("delta").mode("append").save(other_table), deaths=0)
    finally:
        is_over.set()
        thread.join()
        other.close()
    assert ids(own.spark, other_table) == []


def test_a_thread_of_the_function_that_writes_outside_is_reported(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the thread is unknown: a warning names the table. In the batch's session the commit carries the token."""
    told: list[str] = []
    events = own.job._site.events
    emit = type(events).emit

    def noting(self: object, event: object) -> None:
        if isinstance(event, Noticed):
            told.append(event.text)
        emit(events, event)  # type: ignore[arg-type]

    monkeypatch.setattr(type(events), "emit", noting)

    def write(batch: DataFrame) -> None:
        def stray() -> None:
            rows(own.spark, 6).write.format("delta").mode("append").save(own.table)

        def proper() -> None:
            batch.write.format("delta").mode("append").save(own.table)

        for work in (stray, proper):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    own.run(write, deaths=0)
    assert ids(own.spark, own.table) == [1, 2, 6]
    assert [text for text in told if "a thread of no job" in text and TableLocation(own.table) in text] != []
