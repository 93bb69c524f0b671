"""A job under the supervisor, on a store and a log in memory: its work is one sweep, and it is paused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from harness.fakes import CountingIds, FakeClock, FakeTableLog, Recorder
from lakegate.errors import LakegateError
from lakegate.ids import Epoch, JobName, TableLocation, Version
from lakegate.streams.supervisor import Supervisor
from lakegate.telemetry.events import TurnGranted, TurnWaits
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Process, RunnerPorts
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
    """The job, its supervisor, and what they did and said."""

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
        ports = RunnerPorts(
            store=self.store, log=self.log, clock=FakeClock(), randomness=CountingIds(), events=self.seen
        )
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
