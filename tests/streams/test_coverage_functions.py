"""Coverage `publish` around functions of the user: their statements are computed before the turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lakegate
from lakegate.delta.commit_file import commit_info, commit_tokens
from lakegate.delta.gate import Gate
from lakegate.errors import InvalidRequest
from lakegate.ports import WriteToken
from lakegate.rows.committer import Publisher, Staged
from lakegate.rows.execution import Execution
from lakegate.streams.refresh import LOOK_S, keeping_up
from tests.delta.delta_tables import commit_paths, make_table
from tests.streams.staged_batches import noting
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


class Written:
    """A query of the user's own over `root/in`, which merges into a table."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.path, self.root = spark, str(root / "table"), root
        spark.sql(
            f"CREATE TABLE delta.`{self.path}` (id BIGINT, v STRING) USING delta "
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
        self.drop(0, "a", 1, 2, 3)
        self.job = lakegate.JobCoordinator(
            spark, name="Own", lock="L", storage=str(root / "_lakegate"), tables=[self.path]
        )

    def drop(self, number: int, v: str, *ids: int) -> None:
        """A file of the source."""
        rows = self.spark.createDataFrame([(id_, v) for id_ in ids], "id BIGINT, v STRING")
        rows.coalesce(1).write.mode("append").parquet(str(self.root / "in"))

    def merge(self, batch: DataFrame, batch_id: int) -> None:
        """An upsert."""
        target = lakegate.DeltaTable.forPath(batch.sparkSession, self.path).alias("t")
        merge = target.merge(batch.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def update(self, batch: DataFrame, batch_id: int) -> None:
        """Updates existing rows."""
        target = lakegate.DeltaTable.forPath(batch.sparkSession, self.path).alias("t")
        target.merge(batch.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()

    def run(self, function: Callable[[DataFrame, int], None]) -> lakegate.RunReport:
        """Runs one turn."""

        def make() -> DataStreamWriter:
            frame = self.spark.readStream.schema("id BIGINT, v STRING").parquet(str(self.root / "in"))
            writer = frame.writeStream.foreachBatch(lakegate.coordinated(function, self.job, coverage="publish"))
            return writer.option("checkpointLocation", str(self.root / "checkpoint"))

        return lakegate.supervise(make, self.job, once=True)

    def rows(self) -> dict[int, str]:
        """The table."""
        return {row.id: row.v for row in self.spark.read.format("delta").load(self.path).collect()}


@pytest.fixture
def written(session: SparkSession, tmp_path: Path) -> Iterator[Written]:
    """Ended after the test."""
    made = Written(session, tmp_path)
    yield made
    made.job.close()


def test_a_function_is_computed_before_its_turn_and_put_in_it(written: Written) -> None:
    """New rows of another writer belong to its source: it is rebased onto them, once, with the turn's token."""
    calls = []

    def merge_during_another_commit(batch: DataFrame, batch_id: int) -> None:
        written.merge(batch, batch_id)
        calls.append(batch_id)
        written.spark.newSession().sql("SELECT 1").collect()
        assert written.rows() == {}

    assert written.run(merge_during_another_commit).turns == 1
    assert written.rows() == {1: "a", 2: "a", 3: "a"}
    assert calls == [0]
    written.drop(1, "b", 3, 4)
    written.run(written.merge)
    assert written.rows() == {1: "a", 2: "a", 3: "b", 4: "b"}
    assert all(
        commit_tokens(path.read_text())
        for path in commit_paths(written.path)
        if commit_info(path.read_text()).get("operation") == "MERGE"
    )


@pytest.mark.matrix
def test_a_function_keeps_up_while_another_has_the_turn(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rebases onto concurrent commits while it waits, and its turn has nothing left to execute."""
    written.run(written.merge)
    written.drop(1, "b", 3, 4)
    followed: list[Staged] = []
    done: list[str] = []
    monkeypatch.setattr(Execution, "run_on", noting(done, Execution.run_on))
    follow, finish = Publisher.follow, Publisher.finish

    def noted(self: Publisher, staged: Staged) -> Staged:
        followed.append(follow(self, staged))
        return followed[-1]

    monkeypatch.setattr(Publisher, "follow", noted)
    own = written.spark.newSession()  # the turn's token is set there
    other = lakegate.JobCoordinator(
        own, name="Other", lock="L", storage=str(written.root / "_lakegate"), tables=[written.path]
    )
    late: list[int] = []

    def put(self: Publisher, staged: Staged, token: WriteToken) -> object:
        before = len(followed)
        written.job.keep_up(before=())  # as a look that begins when the turn has come
        late.append(len(followed) - before)
        return finish(self, staged, token)

    monkeypatch.setattr(Publisher, "finish", put)
    with other.turn():
        run = threading.Thread(target=written.run, args=(written.update,))
        run.start()
        wait_until(lambda: len(followed) > 0)
        own.sql(f"INSERT INTO delta.`{written.path}` VALUES (4, 'x')")
        wait_until(lambda: any(len(one.reasons) > 0 for one in followed))
    run.join()
    other.close()
    assert done == ["run_on"]
    assert late == [0], "what is being put follows nothing any more"
    assert written.rows() == {1: "a", 2: "a", 3: "b", 4: "b"}


def test_work_that_cannot_keep_up_says_so_in_its_turn(session: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """It keeps up whenever this driver knows of a new commit, until the turn has come or an error has ended it."""

    class Work:
        is_computed_ahead = True
        version, looks, error = 0, 0, ""
        others: tuple[object, ...] = ()

        def known(self) -> object:
            return self.version

        def keep_up(self, *, before: Collection[str]) -> None:
            self.looks, self.others = self.looks + 1, (*self.others, before)
            if self.error:
                raise ValueError(self.error)

    work = Work()
    with keeping_up(work, Gate(session), "Own", session, lambda: [str(work.version)]) as has_come:
        wait_until(lambda: work.looks == 1)
        work.version = 1
        wait_until(lambda: work.looks == 2)
        has_come()
        work.version = 2
        time.sleep(3 * LOOK_S)
        assert work.looks == 2
        assert work.others == (["0"], ["1"])
    with caplog.at_level("DEBUG", "lakegate"), keeping_up(work, Gate(session), "Own", session, tuple):
        work.error = "the disk is full"
        wait_until(lambda: "Own does not keep up before its turn" in caplog.text)
        work.error, looks = "", work.looks
        work.version = 3
        time.sleep(3 * LOOK_S)
        assert work.looks == looks


def test_a_function_that_commits_something_else_is_refused(written: Written) -> None:
    """A stock write would be outside of the turn; of two statements the second would not see the first."""

    def stock(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("delta").mode("append").save(written.path)

    def twice(batch: DataFrame, batch_id: int) -> None:
        written.merge(batch, batch_id)
        written.merge(batch, batch_id)

    for function, message in ((stock, "something else than one statement"), (twice, "a batch is one statement")):
        with pytest.raises(InvalidRequest, match=message):
            written.run(function)
        assert written.rows() == {}
    written.run(written.merge)
    assert written.rows() == {1: "a", 2: "a", 3: "a"}


@pytest.mark.matrix
def test_a_function_is_called_again_where_another_table_of_its_job_has_changed(written: Written) -> None:
    """A rebase covers only the statement's own table, not rows read elsewhere, nor reads after which it wrote nothing."""
    side = make_table(written.spark, written.root / "side", "id BIGINT, said STRING")
    written.job.close()
    written.job = lakegate.JobCoordinator(
        written.spark, name="Own", lock="L", storage=str(written.root / "_lakegate"), tables=[written.path, side]
    )
    calls: list[int] = []

    def joined(batch: DataFrame, batch_id: int) -> None:
        said = batch.sparkSession.read.format("delta").load(side)
        if not said.isEmpty():
            found = batch.join(said, "id").selectExpr("id", "said AS v")
            written.merge(found, batch_id)
        calls.append(batch_id)
        if len(calls) in (1, 3):
            first = batch_id + 1
            text = f"INSERT INTO delta.`{side}` VALUES ({first}, 'x'), ({first + 2}, 'y')"
            other = threading.Thread(target=written.spark.newSession().sql, args=(text,))
            other.start()
            other.join()

    written.run(joined)
    assert (calls, written.rows()) == ([0, 0], {1: "x", 3: "y"})
    written.drop(1, "b", 2, 4)
    written.run(joined)
    assert (calls, written.rows()) == ([0, 0, 1, 1], {1: "x", 2: "x", 3: "y", 4: "y"})
