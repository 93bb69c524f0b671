"""The lease as the holder sees it: pauses, the end in time, and the gate that each heartbeat keeps open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from harness.fakes import FakeClock, FakeGate
from lakegate.errors import Fenced, LostTurn, Unavailable
from lakegate.ids import JobName, SessionId, TableLocation
from lakegate.turns.heartbeat import SELF_FENCE, Heartbeat
from lakegate.turns.ports import SessionState
from lakegate.turns.protocol.fencing import query_token
from tests.turns.coordinator_bench import LEASE_S, Bench, T, U, take


class Session:
    """A session whose store answers as the test sets."""

    def __init__(self) -> None:
        self.id = SessionId("s")
        self.answers: Callable[[], bool] = lambda: True
        self.listener: Callable[[SessionState], None] = lambda state: None

    def heartbeat(self) -> bool:
        return self.answers()

    def watch(self, listener: Callable[[SessionState], None]) -> None:
        self.listener = listener

    def describe_jvm(self, pid: int, start: int) -> None: ...

    def close(self) -> None: ...


class Held:
    """A heartbeat on a clock that stands still, and what it said. Real threads: `start` is called where they are meant."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.session, self.clock = Session(), FakeClock()
        self.lost: list[str] = []
        self.alive: list[float] = []
        self.heartbeat = Heartbeat(
            self.session, lease_s=lease_s, clock=self.clock, on_lost=self.lost.append, on_alive=self.alive.append
        )


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.heartbeat.stop()


def in_a_thread(check: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    """Runs a check that may wait, and keeps what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            check()
        except LostTurn as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def soon(is_so: Callable[[], bool]) -> bool:
    """Returns whether it becomes true soon: the effects of a loss happen in another thread."""
    deadline_s = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return is_so()


def test_nothing_is_written_while_the_connection_is_gone(held: Held) -> None:
    """A writer waits; it goes on with the first heartbeat that is answered, not with the connection alone."""
    held.heartbeat.on_state("suspended")
    thread, raised = in_a_thread(held.heartbeat.check)
    thread.join(0.2)
    assert thread.is_alive()
    held.heartbeat.on_state("connected")
    thread.join(0.2)
    assert thread.is_alive()
    held.heartbeat.beat()
    thread.join(10)
    assert not thread.is_alive()
    assert not raised


def test_a_heartbeat_without_an_answer_pauses_the_writers(held: Held) -> None:
    """A network that swallows everything breaks no connection: this is its only sign before the deadline."""

    def no_answer() -> bool:
        raise Unavailable("no answer")

    held.session.answers = no_answer
    held.heartbeat.beat()
    thread, raised = in_a_thread(held.heartbeat.check)
    thread.join(0.2)
    assert thread.is_alive()
    held.clock.advance(SELF_FENCE * LEASE_S)
    held.heartbeat.beat()
    thread.join(10)
    assert raised
    assert held.lost == ["no heartbeat was answered for 80% of the lease"]


def test_an_answer_from_before_the_connection_was_lost_ends_no_pause(held: Held) -> None:
    """It was on its way when the connection broke, and says nothing about now."""

    def answered_and_lost() -> bool:
        held.heartbeat.on_state("suspended")
        return True

    held.session.answers = answered_and_lost
    held.heartbeat.beat()
    thread, _ = in_a_thread(held.heartbeat.check)
    thread.join(0.2)
    assert thread.is_alive()
    held.session.answers = lambda: True
    held.heartbeat.beat()
    thread.join(10)
    assert not thread.is_alive()


def test_a_lost_session_ends_the_pause_and_the_turn(held: Held) -> None:
    """At once, and for good."""
    held.heartbeat.on_state("suspended")
    thread, raised = in_a_thread(held.heartbeat.check)
    held.heartbeat.on_state("lost")
    thread.join(10)
    assert raised
    held.heartbeat.on_state("connected")
    held.heartbeat.beat()
    with pytest.raises(LostTurn):
        held.heartbeat.check()
    assert soon(lambda: len(held.lost) == 1)


def test_the_end_of_a_run_is_no_loss(held: Held) -> None:
    """A store tells of the end of the session that it was asked to end."""
    held.heartbeat.start()
    held.heartbeat.stop()
    held.heartbeat.on_state("lost")
    assert held.lost == []


def test_a_connection_that_is_back_is_asked_at_once() -> None:
    """Not at the next heartbeat, which is a fifth of the lease away."""
    held = Held(lease_s=600.0)
    held.heartbeat.start()
    held.heartbeat.on_state("suspended")
    held.heartbeat.on_state("connected")
    thread, _ = in_a_thread(held.heartbeat.check)
    thread.join(30)
    assert not thread.is_alive()
    held.heartbeat.stop()


def test_the_end_of_the_lease_is_reported_in_time_although_the_store_hangs() -> None:
    """The thread that cancels the running job must not wait for the store to give up."""
    held, is_over = Held(lease_s=1.0), threading.Event()
    begun_s = time.monotonic()
    held.clock.monotonic_s = time.monotonic
    held.heartbeat = Heartbeat(
        held.session,
        lease_s=1.0,
        clock=held.clock,
        on_lost=lambda reason: held.lost.append(str(time.monotonic() - begun_s)),
    )
    held.heartbeat.start()
    held.session.answers = lambda: is_over.wait(5.0)
    deadline_s = time.monotonic() + 4.0
    while not held.lost and time.monotonic() < deadline_s:
        time.sleep(0.01)
    took_s = time.monotonic() - begun_s
    is_over.set()
    held.heartbeat.stop()
    assert held.lost
    assert took_s < 4.0, "only when the store gave up"


def test_the_callback_of_a_lost_turn_may_wait_for_the_run_to_end() -> None:
    """It stops a query, which waits for the function of its batch, which ends the run: that must not wait in turn."""
    held, is_told, is_ended = Held(lease_s=0.5), threading.Event(), threading.Event()

    def stop_the_query(reason: str) -> None:
        is_told.set()
        is_ended.wait(30)

    held.heartbeat = Heartbeat(held.session, lease_s=0.5, clock=held.clock, on_lost=stop_the_query)
    held.heartbeat.start()
    held.session.answers = lambda: False
    assert is_told.wait(10)
    ending = threading.Thread(target=held.heartbeat.stop, daemon=True)
    ending.start()
    ending.join(10)
    is_finished = not ending.is_alive()
    is_ended.set()
    assert is_finished, "the end of the run and the callback waited for each other"


# ------------------------------------------------------------------------------------------------------------ the gate


def test_each_heartbeat_keeps_the_gate_open_for_what_is_left_of_the_lease() -> None:
    """From the sending of it, not from its answer: the gate closes when the holder fences itself, not later."""
    bench, gate = Bench(), FakeGate()
    bench.gate = gate
    first = bench.job("A")
    turn = take(first, "q", 0)
    assert gate.open[T] == ("A", turn.epoch, int(SELF_FENCE * LEASE_S * 1000))
    turn.enter(U)
    bench.clock.advance(3.0)
    assert first._heartbeat is not None
    first._heartbeat.beat()
    assert gate.calls[-2:] == [("grant", T, 8000), ("grant", U, 8000)] or gate.calls[-2:] == [
        ("grant", U, 8000),
        ("grant", T, 8000),
    ]
    turn.write(T, step=0, name="append", statement=bench.put)
    turn.complete()
    assert gate.open == {}
    first._heartbeat.beat()
    assert gate.open == {}, "a heartbeat after the end of the turn opened it again"


def test_a_turn_that_is_lost_or_abandoned_closes_the_gate() -> None:
    """At once, where the store says so; a deadline that passes closes it in the gate itself."""
    bench, gate = Bench(), FakeGate()
    bench.gate = gate
    first = bench.job("A")
    take(first, "q", 0)
    assert first._heartbeat is not None
    first._heartbeat.on_state("lost")
    assert soon(lambda: gate.open == {})
    second = bench.job("B", jvm=2)
    bench.store._end(first._session)
    turn = take(second, "r", 0)
    turn.abandon(None)
    assert gate.open == {}


def test_a_gate_that_knows_a_later_turn_lets_no_earlier_one_in() -> None:
    """Two runs in one process: the one that stood still finds the other's epoch."""
    bench, gate = Bench(lease_s=None), FakeGate()
    bench.gate = gate
    gate.grant(T, JobName("other"), 10_000, 1)
    turn = bench.job("A").take(token_id=query_token("q"), query_id="q", batch=0, tables=(T,))
    turn.next_batch(0, "d")
    with pytest.raises(Fenced):
        turn.enter(TableLocation(T))
