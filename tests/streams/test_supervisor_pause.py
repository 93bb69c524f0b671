"""A paused job under the supervisor: it asks for nothing, looks at nothing, ends nobody's run, and goes on when it is resumed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from harness.fakes import CountingIds, FakeClock, FakeTableLog, Recorder
from lakegate.errors import LakegateError, TurnNotGranted
from lakegate.ids import Epoch, JobName, TableLocation, Version
from lakegate.streams.supervisor import Supervisor
from lakegate.telemetry.events import TurnGranted, TurnWaits
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Ports, Process
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.lock_record import LockRecord, Pause
from lakegate.turns.protocol.ordering import NoRule, OrderRule
from lakegate.turns.protocol.protocol import Order
from lakegate.turns.stores.memory import MemoryTurnStore
from lakegate.turns.turn import HeldTurn

PAUSE = Pause(since_ms=1, by="me@h", reason="repair")
JOB = JobName("Upkeep")


class Sweeps:
    """Work without a source: one sweep is due."""

    checkpoint = None

    def __init__(self) -> None:
        self.looked, self.swept = 0, 0

    def tables(self) -> tuple[TableLocation, ...]:
        return ()

    def prepare(self) -> None:
        self.looked += 1

    def query(self, on_batch: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        raise AssertionError("there is no source")

    def stage(self, batch: DataFrame, batch_id: int) -> None:
        raise AssertionError("there is no source")

    def run_batch(self, turn: HeldTurn, batch: DataFrame, batch_id: int) -> int:
        raise AssertionError("there is no source")

    def has_sweep_work(self) -> bool:
        return self.swept == 0

    def run_sweep(self, turn: HeldTurn, batch_id: int) -> None:
        self.swept += 1

    def idle_at(self) -> Mapping[TableLocation, Version]:
        return {}


class Bench:
    def __init__(
        self,
        spark: SparkSession,
        store: MemoryTurnStore | None = None,
        *,
        rule: OrderRule | None = None,
        timeout_s: float = 5,
    ) -> None:
        self.store, self.seen, self.work = store or MemoryTurnStore(lease_s=None), Recorder(), Sweeps()
        self.log = FakeTableLog()
        ports = Ports(store=self.store, log=self.log, clock=FakeClock(), randomness=CountingIds(), events=self.seen)
        self.coordinator = Coordinator(
            ports,
            lock="L",
            job=JOB,
            order=Order(rule=rule or NoRule(), absent_after_ms=None),
            process=Process(host="h", boot_id="b", pid=1, pid_start=1),
            lock_timeout_s=timeout_s,
        )
        self.supervisor = Supervisor(spark, self.coordinator, self.work, self.log)
        self.told: list[LakegateError] = []
        self.change(lambda record: transitions.pause(record, JOB, PAUSE))

    def change(self, move: Callable[[LockRecord], LockRecord]) -> None:
        stored = self.store.read("L")
        record = stored.record or LockRecord(lock="L", epoch=Epoch(1))
        assert self.store.compare_and_set("L", move(record), stored.version) == "done"

    def asked(self) -> bool:
        return any(isinstance(event, TurnWaits | TurnGranted) for event in self.seen.events)


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
