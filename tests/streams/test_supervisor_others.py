"""A job under the supervisor that is not let in while nobody else is alive: it ends if it runs alone, and waits for its own run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from lakegate.errors import TurnNotGranted
from lakegate.ids import Epoch, JobName
from lakegate.streams.supervisor import Supervisor
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.lock_record import JobState, LockRecord
from lakegate.turns.protocol.ordering import Strict
from tests.streams.supervisor_bench import JOB, Bench

OTHER = JobName("Ingestion")


class WaitingBench(Bench):
    """A job that waits for a turn of another one, which is not alive."""

    def __init__(self, spark: SparkSession, *, has_others: bool) -> None:
        super().__init__(spark, rule=Strict((OTHER,)), timeout_s=0)
        self.supervisor = Supervisor(spark, self.coordinator, self.work, self.log, has_others=has_others)
        self.change(lambda record: transitions.resume(record, JOB))
        self.complete("Third", Epoch(1))

    def complete(self, job: str, epoch: Epoch) -> None:
        """Notes a turn of another job."""

        def move(record: LockRecord) -> LockRecord:
            done = JobState(done=epoch, turns=1, completed_at_ms=1)
            return replace(record, epoch=epoch, jobs={**record.jobs, JobName(job): done})

        self.change(move)


def test_a_job_that_runs_alone_ends_where_no_other_job_could_let_it_in(session: SparkSession) -> None:
    """Waiting longer cannot help: the job that would take the next turn does not run."""
    bench = WaitingBench(session, has_others=False)
    with pytest.raises(TurnNotGranted, match="waits for Ingestion"):
        bench.supervisor.run_until(lambda: bench.work.swept > 0, on_waiting=bench.told.append)
    assert bench.supervisor.report.gave_up == 1
    bench.supervisor.close()


def test_a_job_waits_while_another_job_of_its_run_is_restarted(session: SparkSession) -> None:
    """A killed job is not alive again before its Spark has started; that ends no other job."""
    bench = WaitingBench(session, has_others=True)

    def is_swept() -> bool:
        if bench.supervisor.report.gave_up == 3:
            bench.complete(OTHER, Epoch(2))
        return bench.work.swept > 0

    bench.supervisor.run_until(is_swept, on_waiting=bench.told.append)
    assert (bench.supervisor.report.gave_up, bench.supervisor.report.sweeps) == (3, 1)
    bench.supervisor.close()
