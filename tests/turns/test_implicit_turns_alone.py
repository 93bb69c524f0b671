"""Turns for stock writers while the store of turns is unavailable, on a gate with a fake JVM."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.fakes import FakeTableLog, Recorder
from lakegate.errors import StoreUnavailable
from lakegate.ids import TableLocation
from lakegate.streams import implicit_turns
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Process, RunnerPorts
from lakegate.turns.host import MachineClock, Uuids
from lakegate.turns.protocol.effects import Stored
from lakegate.turns.protocol.fencing import job_token
from lakegate.turns.protocol.ordering import NoRule
from lakegate.turns.protocol.protocol import Order
from lakegate.turns.stores.memory import MemoryTurnStore

T = TableLocation("/t")


class SometimesAway(MemoryTurnStore):
    """A store that does not answer the next read of the record, if the test sets this."""

    def __init__(self) -> None:
        super().__init__(lease_s=None)
        self.is_away, self.has_failed = False, threading.Event()

    def read(self, lock: str) -> Stored:
        if self.is_away:
            self.is_away = False
            self.has_failed.set()
            raise StoreUnavailable
        return super().read(lock)


class OneCommit:
    """A gate at which one commit waits; the store is away when it has been put."""

    store: SometimesAway

    def __init__(self, spark: Any) -> None:
        self._puts, self._looked = 0, 0

    def grant(self, *told: object) -> bool:
        return True

    def is_awaited(self, table: TableLocation, job: str) -> bool:
        return self._puts == 0

    def puts(self, table: TableLocation) -> int:
        self._looked += 1
        if self._looked == 2:
            self._puts, self.store.is_away = 2, True  # the entry commit, and the one that waited
        return self._puts

    @contextlib.contextmanager
    def acting(self, job: str) -> Iterator[None]:
        yield


def coordinator(store: SometimesAway, name: str, *, jvm: int, timeout_s: float) -> Coordinator:
    """A job on this machine, whose JVM runs on."""
    log = FakeTableLog()
    log.put(T, "x", 1, None)
    ports = RunnerPorts(store=store, log=log, clock=MachineClock(), randomness=Uuids(), events=Recorder())
    process = Process(
        host="h", boot_id="b", pid=jvm, pid_start=1, jvm_pid=jvm, jvm_start=1, is_running=lambda pid, start: True
    )
    order = Order(rule=NoRule(), absent_after_ms=None)
    return Coordinator(ports, lock="L", job=name, order=order, process=process, lock_timeout_s=timeout_s)


def test_a_turn_that_could_not_be_given_back_blocks_no_job_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for the JVM of a run that has ended; it is this one's, which closes the turn without waiting for a commit."""
    store = OneCommit.store = SometimesAway()
    monkeypatch.setattr(implicit_turns, "Gate", OneCommit)
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda *told: None), streams=SimpleNamespace(active=[]))
    job: Any = SimpleNamespace(tables=(T,), heads=dict)
    turns = implicit_turns.StockTurns(spark, coordinator(store, "Stock", jvm=7, timeout_s=0), job)
    turns.start(1000)
    other = coordinator(store, "Other", jvm=8, timeout_s=10)
    assert store.has_failed.wait(10)
    other.take(token_id=job_token("Other"), query_id=None, batch=0, tables=()).complete()
    turns.stop()
    other.close()
