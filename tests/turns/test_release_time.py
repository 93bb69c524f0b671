"""The end of a turn in the ledger is never later than its release."""

from __future__ import annotations

import pytest

from harness.fakes import FakeClock
from lakegate.turns.protocol.effects import CasReply
from lakegate.turns.protocol.lock_record import LockRecord
from lakegate.turns.stores.memory import MemoryTurnStore
from lakegate.turns.turn import HeldTurn
from tests.turns.coordinator_bench import Bench, take


class SlowReplies(MemoryTurnStore):
    """The store acts at once, and its answer takes a second."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.acted_at_ms = 0

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        reply = super().compare_and_set(lock, record, version)
        self.acted_at_ms = self._clock.wall_ms()
        self._clock.advance(1.0)
        return reply


def complete(turn: HeldTurn) -> None:
    turn.complete()


def abandon(turn: HeldTurn) -> None:
    turn.abandon(ValueError("the batch failed"))


@pytest.mark.parametrize("end", [complete, abandon])
def test_a_successor_granted_before_the_reply_came_does_not_seem_to_overlap(end: object) -> None:
    """The next job may be granted while the reply is in flight: the ledger must not show both turns at once."""
    assert callable(end)
    bench = Bench(lease_s=None)
    store = SlowReplies(bench.clock)
    bench.store = store
    turn = take(bench.job("A"), "q", 0)
    end(turn)
    assert bench.rows()[-1].released_at_ms <= store.acted_at_ms
