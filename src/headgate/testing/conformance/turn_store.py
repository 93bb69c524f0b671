"""What every `TurnStore` must do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.driver import Ports, Process
from headgate.coordinator.machine import MachineClock, Uuids
from headgate.core.ids import Epoch, JobName, TableLocation
from headgate.core.turns.moves import begin_record
from headgate.core.turns.order import NoRule
from headgate.core.turns.protocol import Order
from headgate.core.turns.tokens import job_token
from headgate.errors import TurnNotGranted
from headgate.events import TurnGranted
from headgate.ports import TurnStore
from headgate.testing.fakes import FakeTableLog, Recorder

LOCK = "L/ä lock"
T = TableLocation("/t")


class TurnStoreConformance:
    """Subclass, and give `open_store`: a factory of handles on one and the same store."""

    @pytest.fixture
    def open_store(self) -> Callable[[], TurnStore]:
        """A factory; every call gives another handle on the same data."""
        raise NotImplementedError

    def test_a_lock_never_written_has_no_record(self, open_store: Callable[[], TurnStore]) -> None:
        """Reading gives None at version 0, and the lock is not listed."""
        store = open_store()
        assert store.read(LOCK).record is None
        assert store.read(LOCK).version == 0
        assert store.locks() == ()

    def test_compare_and_set_takes_only_the_version_read(self, open_store: Callable[[], TurnStore]) -> None:
        """The first of two writers on one version wins, the second is stale and changes nothing."""
        one, other = open_store(), open_store()
        first = begin_record(LOCK, Epoch(7))
        assert one.compare_and_set(LOCK, first, 0) == "done"
        assert other.compare_and_set(LOCK, begin_record(LOCK, Epoch(9)), 0) == "stale"
        seen = other.read(LOCK)
        assert seen.record == first
        second = replace(first, epoch=Epoch(5000))
        assert other.compare_and_set(LOCK, second, seen.version) == "done"
        assert one.compare_and_set(LOCK, first, seen.version) == "stale"
        assert one.read(LOCK).record == second
        assert one.locks() == (LOCK,)

    def test_locks_are_apart(self, open_store: Callable[[], TurnStore]) -> None:
        """A write to one lock is not seen under another name."""
        store = open_store()
        store.compare_and_set("A", begin_record("A", Epoch(0)), 0)
        assert store.read("B").record is None

    def test_coordinator_id_is_the_datas_own(self, open_store: Callable[[], TurnStore]) -> None:
        """Every handle reads the same id."""
        assert open_store().coordinator_id() == open_store().coordinator_id()

    def test_a_session_is_alive_until_it_is_closed(self, open_store: Callable[[], TurnStore]) -> None:
        """Seen by every handle; a closed one is gone, and closing again changes nothing."""
        one, other = open_store(), open_store()
        session = one.open_session(LOCK, JobName("Ingestion"))
        assert other.live_sessions(LOCK).ids == {session.id}
        assert other.live_sessions(LOCK).jobs == {"Ingestion"}
        assert other.live_sessions("another lock").ids == frozenset()
        assert session.heartbeat()
        session.close()
        session.close()
        assert other.live_sessions(LOCK).ids == frozenset()

    def test_a_second_run_of_a_live_job_is_refused(self, open_store: Callable[[], TurnStore]) -> None:
        """By name, on one lock; the same job on another lock, and another job on this one, are welcome."""
        one, other = open_store(), open_store()
        session = one.open_session(LOCK, JobName("TTL/1"))
        with pytest.raises(TurnNotGranted, match="TTL/1"):
            other.open_session(LOCK, JobName("TTL/1"))
        other.open_session("other", JobName("TTL/1")).close()
        other.open_session(LOCK, JobName("TTL")).close()
        session.close()
        again = other.open_session(LOCK, JobName("TTL/1"))
        assert again.id != session.id
        again.close()

    def test_a_waiter_is_woken_by_a_change(self, open_store: Callable[[], TurnStore]) -> None:
        """A wait on a version ends soon after the record changes, long before its time."""
        one, other = open_store(), open_store()
        one.compare_and_set(LOCK, begin_record(LOCK, Epoch(0)), 0)
        version = one.read(LOCK).version
        woken = threading.Event()

        def wait() -> None:
            while other.read(LOCK).version == version:
                other.wait_for_change(LOCK, version, 30.0)
            woken.set()
            other.close()

        thread = threading.Thread(target=wait)
        thread.start()
        one.compare_and_set(LOCK, begin_record(LOCK, Epoch(1)), version)
        thread.join(20)
        assert woken.is_set()

    def test_contenders_do_not_overlap(self, open_store: Callable[[], TurnStore]) -> None:
        """12 jobs take 10 turns each: no two at once, epochs rise by one, nobody is left waiting."""
        inside: list[str] = []
        epochs: list[int] = []
        faults: list[str] = []

        def run(job: str) -> None:
            store, seen = open_store(), Recorder()
            ports = Ports(store=store, log=FakeTableLog(), clock=MachineClock(), randomness=Uuids(), events=seen)
            process = Process(host="h", boot_id="b", pid=1, pid_start=1)
            order = Order(rule=NoRule(), absent_after_ms=None)
            coordinator = Coordinator(ports, lock=LOCK, job=job, order=order, process=process, lock_timeout_s=120.0)
            try:
                for _ in range(10):
                    turn = coordinator.take(token_id=job_token(job), query_id=None, batch=0, tables=(T,))
                    inside.append(job)
                    if len(inside) != 1:
                        faults.append(f"{inside} at once")
                    epochs.append(turn.epoch)
                    inside.remove(job)
                    turn.complete()
                if sum(isinstance(event, TurnGranted) for event in seen.events) != 10:
                    faults.append(f"{job} was not told of its turns")
            except Exception as error:
                faults.append(repr(error))
            finally:
                coordinator.close()
                store.close()

        threads = [threading.Thread(target=run, args=(f"job-{n}",)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not faults
        assert epochs == list(range(epochs[0], epochs[0] + 120))
