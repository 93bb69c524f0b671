"""A paused job under the supervisor: it asks for nothing, looks at nothing, ends nobody's run, and goes on when it is resumed."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

from lakegate.errors import TurnNotGranted
from lakegate.turns.protocol import transitions
from tests.streams.supervisor_bench import JOB, Bench


@pytest.fixture
def bench(session: SparkSession) -> Bench:
    return Bench(session)


def test_one_run_of_a_paused_job_is_refused_before_it_looks(bench: Bench) -> None:
    """The error names the person, the reason, and how to resume."""
    with pytest.raises(TurnNotGranted, match="paused by me@h: repair") as refused:
        bench.supervisor.run_once()
    assert "lakegate resume Upkeep" in str(refused.value)
    assert (bench.work.looked, bench.asked()) == (0, False)


def test_a_run_until_idle_leaves_a_paused_job_out(bench: Bench) -> None:
    """It ends once the others are done; the paused one has said nothing about being idle."""

    def is_settled() -> bool:
        record = bench.store.read("L").record
        return record is not None and transitions.is_settled(record, {JOB: {}}, bench.store.live_sessions("L"))

    bench.supervisor.run_until(is_settled, on_waiting=bench.told.append)
    record = bench.store.read("L").record
    assert record is not None
    assert record.job(JOB).idle_since_ms is None
    assert (bench.work.looked, bench.asked(), len(bench.told)) == (0, False, 1)
    bench.change(lambda record: transitions.resume(record, JOB))
    assert not is_settled()


def test_a_paced_run_waits_and_goes_on_when_it_is_resumed(bench: Bench) -> None:
    """Within about a second, not at its next scheduled run; reported once."""
    runs = threading.Thread(
        target=bench.supervisor.run_paced, args=(3_600_000,), kwargs={"on_waiting": bench.told.append}
    )
    runs.start()
    try:
        while not bench.told:
            runs.join(0.01)
        assert bench.work.looked == 0
        bench.change(lambda record: transitions.resume(record, JOB))
        for _ in range(1_000):
            runs.join(0.01)
            if bench.work.swept:
                break
        assert bench.work.swept == 1
    finally:
        bench.supervisor.stop()
        runs.join(30)
    assert len(bench.told) == 1
    assert not runs.is_alive()
