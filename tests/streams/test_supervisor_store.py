"""A store of turns that is away for a while under the supervisor: short absences cost time, long ones end the job, nothing else."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

from lakegate.errors import LakegateError, LostTurn, StoreUnavailable
from lakegate.streams.supervisor import Supervisor
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.effects import Stored
from lakegate.turns.stores.memory import MemoryTurnStore
from lakegate.turns.turn import HeldTurn
from tests.streams.supervisor_bench import JOB, Bench


class SometimesAway(MemoryTurnStore):
    """A store that does not answer some of the questions for the record."""

    away: int = 0

    def read(self, lock: str) -> Stored:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("the store of turns is away")
        return super().read(lock)


class AwayBench(Bench):
    """The same with that store."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, SometimesAway(lease_s=None))
        self.supervisor = Supervisor(spark, self.coordinator, self.work, self.log, store_pauses_s=[0.01] * 4)
        self.change(lambda record: transitions.resume(record, JOB))

    def run(self, away: int) -> None:
        """A run until the sweep is done, with so many questions that are not answered."""
        assert isinstance(self.store, SometimesAway)
        self.store.away = away
        self.supervisor.run_until(lambda: self.work.swept > 0, on_waiting=self.told.append)


@pytest.mark.parametrize("away", [1, 4])
def test_a_store_that_is_away_for_a_while_is_asked_again(session: SparkSession, away: int) -> None:
    """Each failure is reported; the sweep is done once, in one turn."""
    bench = AwayBench(session)
    bench.run(away)
    assert [type(error) for error in bench.told] == [StoreUnavailable] * away
    assert (bench.work.swept, bench.supervisor.report.sweeps) == (1, 1)
    record = bench.store.read("L").record
    assert record is not None
    assert record.holder is None
    bench.supervisor.close()


def test_a_store_that_stays_away_ends_the_job(session: SparkSession) -> None:
    """The error has the number of attempts and the advice; nothing was done."""
    bench = AwayBench(session)
    with pytest.raises(LakegateError, match="is away; asked 5 times, and Upkeep has ended") as ended:
        bench.run(1000)
    assert (ended.value.exit_code, bench.work.swept) == (6, 0)
    assert "Start it again" in str(ended.value)


def test_the_spark_jobs_of_a_sweep_end_when_its_turn_is_lost(session: SparkSession) -> None:
    """It has no query that could be stopped; the job that would run for hours is cancelled, and the sweep comes again."""
    bench, status = AwayBench(session), session.sparkContext.statusTracker()

    def sweep(turn: HeldTurn, batch_id: int) -> None:
        bench.work.swept += 1
        if bench.work.swept == 1:
            session.sparkContext.setJobGroup("sweep", "of a test")
            session.range(0, 10**15, 1, 1).selectExpr("sum(id % 7)").collect()

    def lose() -> None:
        deadline_s = time.monotonic() + 60
        while not set(status.getActiveJobsIds()) & set(status.getJobIdsForGroup("sweep")):
            assert time.monotonic() < deadline_s, "the sweep never came"
            time.sleep(0.02)
        bench.supervisor.turn_lost("a test says so")

    bench.work.run_sweep = sweep
    losing = threading.Thread(target=lose)
    losing.start()
    try:
        with pytest.raises(LostTurn, match="a test says so; its Spark jobs were cancelled"):
            bench.supervisor.run_once()
    finally:
        losing.join()
        session.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert (bench.work.swept, bench.supervisor.report.sweeps) == (1, 0)
    bench.work.swept = 0
    bench.work.run_sweep = lambda turn, batch_id: None
    bench.supervisor.run_once()
    assert bench.supervisor.report.sweeps == 1
    bench.supervisor.close()
