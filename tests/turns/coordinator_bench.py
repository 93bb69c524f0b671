"""Coordinators of turns on a store in memory, tables that are lists and a clock that stands still."""

from __future__ import annotations

import json

from harness.fakes import CountingIds, FakeClock, FakeTableLog, Recorder
from lakegate.ids import TableLocation
from lakegate.ports import WriteToken
from lakegate.telemetry.events import TurnEnded
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Process, RunnerPorts
from lakegate.turns.ports import TurnStore, WriteGate
from lakegate.turns.protocol.effects import StepMark
from lakegate.turns.protocol.fencing import query_token
from lakegate.turns.protocol.ordering import NoRule, OrderRule
from lakegate.turns.protocol.protocol import Order
from lakegate.turns.stores.memory import MemoryTurnStore

T, U = TableLocation("/t"), TableLocation("/u")
LEASE_S = 10.0


class Bench:
    """A store, two tables, a clock, and coordinators on them."""

    def __init__(self, *, lease_s: float | None = LEASE_S) -> None:
        self.clock, self.log, self.seen, self.ids = FakeClock(), FakeTableLog(), Recorder(), CountingIds()
        self.store: TurnStore = MemoryTurnStore(lease_s=lease_s, monotonic_s=self.clock.monotonic_s)
        self.lost: list[str] = []
        self.running: set[tuple[int, int]] = set()
        self.gate: WriteGate | None = None

    def job(
        self,
        name: str,
        rule: OrderRule | None = None,
        *,
        jvm: int = 1,
        timeout_s: float = 0.0,
        clock: FakeClock | None = None,
    ) -> Coordinator:
        ports = RunnerPorts(
            store=self.store,
            log=self.log,
            clock=clock or self.clock,
            randomness=self.ids,
            events=self.seen,
            gate=self.gate,
        )
        process = Process(
            host="h",
            boot_id="b",
            pid=jvm,
            pid_start=1,
            jvm_pid=jvm,
            jvm_start=1,
            is_running=lambda pid, start: (pid, start) in self.running,
        )
        order = Order(rule=rule or NoRule(), absent_after_ms=None)
        return Coordinator(
            ports, lock="L", job=name, order=order, process=process, lock_timeout_s=timeout_s, on_lost=self.lost.append
        )

    def put(self, token: WriteToken, table: TableLocation = T) -> None:
        """Puts a commit with a token, as a stock statement does."""
        said = json.loads(token.user_metadata)
        self.log.put(table, token.token_id, token.number, StepMark(name=said["step"], offsets_sha256=said["offsets"]))

    def rows(self) -> list[TurnEnded]:
        return [event for event in self.seen.events if isinstance(event, TurnEnded)]


def take(coordinator: Coordinator, query: str, batch: int, *, digest: str = "d"):
    """A turn on T, entered, at `batch`."""
    turn = coordinator.take(token_id=query_token(query), query_id=query, batch=batch, tables=(T,))
    turn.next_batch(batch, digest)
    turn.enter(T)
    return turn
