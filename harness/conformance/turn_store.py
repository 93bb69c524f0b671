"""Conformance suite of `TurnStore`: the rules that every adapter keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

import pytest

from harness.conformance import history
from harness.conformance.history import History
from harness.fakes import FakeTableLog, Recorder
from lakegate.errors import LostTurn, TurnNotGranted
from lakegate.ids import Epoch, JobName, Nonce, TableLocation
from lakegate.telemetry.events import TurnGranted
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Process, RunnerPorts
from lakegate.turns.host import MachineClock, Uuids
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.effects import CasReply
from lakegate.turns.protocol.fencing import job_token
from lakegate.turns.protocol.lock_record import Holder, LockRecord, Mark, Ticket
from lakegate.turns.protocol.ordering import After, NoRule
from lakegate.turns.protocol.protocol import Order
from lakegate.turns.protocol.transitions import begin_record
from lakegate.turns.turn import HeldTurn

LOCK = "L/ä lock"
T = TableLocation("/t")
UNDISTURBED = ((1, "made"), (1, "granted"), (2, "completed"))
DISTURBED = ((1, "asked"), (2, "granted"), (3, "completed"))
"""The changes of a turn, by their number in the turn. First when no other job wants the turn: request and grant are one change,
and before the very first the record itself is made. Then when another job has the turn."""


class TurnStoreConformance:
    """To use it, make a subclass with a fixture `open_store`: a factory of handles on one and the same store."""

    contenders, turns_each = 50, 12
    """How many jobs contend, and for how many turns each; fewer for a store that would need minutes."""
    limit_s = 240.0
    """After this time a job that has not had all its turns counts as left waiting."""

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
        """Every handle sees it; a closed session is gone, and closing it again changes nothing."""
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
        """By name, on one lock; the same job on another lock, and another job on this lock, are accepted."""
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

    def test_a_change_made_before_the_wait_begins_is_not_waited_for(self, open_store: Callable[[], TurnStore]) -> None:
        """A change between the read and the wait ends the wait at once; a wait without a change ends at its timeout."""
        one, other = open_store(), open_store()
        for epoch in range(20):
            version = other.read(LOCK).version
            assert one.compare_and_set(LOCK, begin_record(LOCK, Epoch(epoch)), version) == "done"
            begun_s = time.monotonic()
            other.wait_for_change(LOCK, version, 10.0)
            assert time.monotonic() - begun_s < 5.0
        begun_s = time.monotonic()
        other.wait_for_change(LOCK, other.read(LOCK).version, 0.2)
        assert time.monotonic() - begun_s < 5.0

    def test_a_waiting_job_is_woken_by_the_change_that_lets_it_in(self, open_store: Callable[[], TurnStore]) -> None:
        """For each kind of change, just before the wait begins or in the middle of it."""
        one, other = open_store(), open_store()
        first, waits, behind = JobName("first"), JobName("waits"), JobName("behind")
        tickets = [
            Ticket(job=job, session=store.open_session(LOCK, job).id, nonce=Nonce(job), asked_at_ms=at)
            for at, (store, job) in enumerate(((one, first), (other, waits), (one, behind)))
        ]
        asked = transitions.ask(begin_record(LOCK, Epoch(0)), tickets[1], After((first,)), None)
        after = replace(asked, tickets=tuple(tickets[1:]))
        all_three = replace(begin_record(LOCK, Epoch(0)), tickets=tuple(tickets))
        held = transitions.grant(all_three, _holder(tickets[0]))
        changes = [
            (all_three, transitions.give_up(all_three, tickets[0].nonce)),
            (held, transitions.complete(held, now_ms=1)),
            (held, transitions.close(held)),
            (after, transitions.go_idle(after, first, {}, NoRule(), None, now_ms=1)),
        ]
        for was, now in changes:
            for is_before in (True, False):
                version = one.read(LOCK).version
                assert one.compare_and_set(LOCK, was, version) == "done"
                begun_s, version = time.monotonic(), other.read(LOCK).version
                change = threading.Timer(0.0 if is_before else 0.1, one.compare_and_set, (LOCK, now, version))
                change.start()
                if is_before:
                    change.join()
                while other.read(LOCK).version == version:
                    other.wait_for_change(LOCK, version, history.WAIT_S, waits)
                if is_before:
                    other.wait_for_change(LOCK, version, history.WAIT_S, waits)
                change.join()
                assert time.monotonic() - begun_s < history.WAIT_S - 0.5, f"not woken when {was} became {now}"

    def test_an_acknowledged_change_is_read_by_every_handle(self, open_store: Callable[[], TurnStore]) -> None:
        """After a change is acknowledged to one handle, no handle reads the state before it; this includes a run's presence."""
        one, other = open_store(), open_store()
        for n in range(20):
            version = one.read(LOCK).version
            assert one.compare_and_set(LOCK, begin_record(LOCK, Epoch(n)), version) == "done"
            assert other.read(LOCK).version > version
            session = one.open_session(LOCK, JobName(f"job-{n}"))
            assert session.id in other.live_sessions(LOCK).ids
            session.close()

    def test_a_dead_session_leaves_nothing_behind(self, open_store: Callable[[], TurnStore]) -> None:
        """A dead session's ticket and turn block no other job: the next job closes the turn and passes over the ticket."""
        one, other = open_store(), open_store()
        holder, ghost = contender(one, "holder"), contender(one, "ghost")
        turn = take(holder)
        with pytest.raises(TurnNotGranted):
            take(ghost, timeout_s=0.1)
        session = ghost._session
        assert session is not None
        left = one.read(LOCK)
        assert left.record is not None
        assert left.record.tickets == ()
        ticket = Ticket(job=JobName("ghost"), session=session.id, nonce=Nonce("left behind"), asked_at_ms=0)
        assert one.compare_and_set(LOCK, replace(left.record, tickets=(ticket,)), left.version) == "done"
        ghost.close()
        holder.close()
        following = contender(other, "next")
        assert take(following, timeout_s=10.0).epoch == turn.epoch + 1
        following.close()

    @pytest.mark.parametrize("what", ["request", "reply"])
    def test_an_unknown_outcome_of_a_call_repeats_nothing(
        self,
        open_store: Callable[[], TurnStore],
        lose: Callable[[TurnStore, str], AbstractContextManager[TurnStore]],
        what: str,
    ) -> None:
        """A request or its reply is lost at each change in turn: no turn is given twice, none is lost, no ticket stays."""
        for at, change in UNDISTURBED:
            with lose(open_store(), what) as losing:
                store = _LosingAt(losing, at)
                job = contender(store, change)
                turn = take(job, timeout_s=60.0)
                turn.complete()
                job.close()
            assert store.lost_what(job.job) == change, f"{store.lost_what(job.job)} was lost in place of {change}"
            _check_ended(open_store(), job, turn)

    @pytest.mark.parametrize("what", ["request", "reply"])
    def test_an_unknown_outcome_of_a_call_while_another_has_the_turn_repeats_nothing(
        self,
        open_store: Callable[[], TurnStore],
        lose: Callable[[TurnStore, str], AbstractContextManager[TurnStore]],
        what: str,
    ) -> None:
        """Here the request is a change of its own, so a place in the queue may be lost: the job takes no second place."""
        other, looking = contender(open_store(), "other"), open_store()
        for at, change in DISTURBED:
            held = take(other, timeout_s=60.0)
            with lose(open_store(), what) as losing:
                store = _LosingAt(losing, at)
                job = contender(store, change)
                giving_back = threading.Thread(target=_complete_when_asked, args=(held, looking, job.job))
                giving_back.start()
                turn = take(job, timeout_s=60.0)
                giving_back.join()
                turn.complete()
                job.close()
            assert store.lost_what(job.job) == change, f"{store.lost_what(job.job)} was lost in place of {change}"
            assert turn.epoch == held.epoch + 1
            _check_ended(looking, job, turn)
        other.close()

    @pytest.fixture
    def lose(self) -> Callable[[TurnStore, str], AbstractContextManager[TurnStore]]:
        """Makes a store whose `lost_compare_and_set` loses the request or the reply; on a real network where there is one."""
        return lambda store, what: nullcontext(cast(TurnStore, Losing(store, what)))

    def test_a_turn_that_is_noted_stands_until_a_later_one_is(self, open_store: Callable[[], TurnStore]) -> None:
        """The first of two turns with one epoch stays noted; each lock has its own; the answer to who is alive includes it."""
        one, other = open_store(), open_store()
        assert one.live_sessions(LOCK).mark is None
        first, second, later = (
            Mark(Epoch(epoch), Nonce(nonce)) for epoch, nonce in ((5, "first"), (5, "second"), (6, "later"))
        )
        assert one.note_turn(LOCK, first) == first
        assert one.note_turn(LOCK, first) == first
        assert other.note_turn(LOCK, second) == first
        assert other.note_turn(LOCK, Mark(Epoch(4), Nonce("earlier"))) == first
        assert other.live_sessions(LOCK).mark == first
        session = one.open_session(LOCK, JobName("a job"))
        assert other.note_turn(LOCK, later) == later
        assert one.live_sessions(LOCK).mark == later
        assert one.live_sessions(LOCK).jobs == {"a job"}
        assert one.live_sessions("another lock").mark is None
        session.close()

    def test_an_older_copy_of_the_record_gives_no_epoch_twice(self, open_store: Callable[[], TurnStore]) -> None:
        """Restored while a job has its turn: the next turn lies above it, and the job writes nothing more."""
        one, other = open_store(), open_store()
        holder, following = contender(one, "holder"), contender(other, "following")
        take(holder).complete()
        copy = one.read(LOCK).record
        assert copy is not None
        held = take(holder)
        assert one.compare_and_set(LOCK, copy, one.read(LOCK).version) == "done"
        turn = take(following, timeout_s=10.0)
        assert turn.epoch > held.epoch
        with pytest.raises(LostTurn):
            held.enter(T)
        turn.enter(T)
        turn.complete()
        with pytest.raises(LostTurn):
            held.complete()
        again = take(holder, timeout_s=10.0)
        assert again.epoch > turn.epoch
        again.complete()
        # The copy names an ended turn of a live run: that run must end the turn itself, or no job would ever be served.
        held = take(following, timeout_s=10.0)
        copy = one.read(LOCK).record
        assert copy is not None
        held.complete()
        assert one.compare_and_set(LOCK, copy, one.read(LOCK).version) == "done"
        assert take(following, timeout_s=10.0).epoch == held.epoch + 1
        holder.close()
        following.close()

    def test_contenders_do_not_overlap(self, open_store: Callable[[], TurnStore]) -> None:
        """50 jobs take up to 600 turns: no two at once, epochs rise by one, in the order of asking, and nobody is left waiting."""
        inside: list[str] = []
        faults: list[str] = []
        history = History()

        def run(job: str) -> None:
            coordinator = None
            try:
                store = history.watch(open_store())
                coordinator = contender(store, job, seen := Recorder())
                for _ in range(self.turns_each):
                    turn = take(coordinator)
                    inside.append(job)
                    if len(inside) != 1:
                        faults.append(f"{inside} at once")
                    time.sleep(0.001)  # otherwise a fast store serves one job after another without contention
                    inside.remove(job)
                    turn.complete()
                if sum(isinstance(event, TurnGranted) for event in seen.events) != self.turns_each:
                    faults.append(f"{job} was not given its turns")
                coordinator.close()
                store.close()
            except Exception as error:
                faults.append(repr(error))

        threads = [threading.Thread(target=run, args=(f"job-{n}",), daemon=True) for n in range(self.contenders)]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + self.limit_s
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        assert not [thread.name for thread in threads if thread.is_alive()], "left waiting"
        assert (faults + history.faults()) == []
        granted = [record.holder.nonce for _, record in history.changes if record.holder is not None]
        assert len(set(granted)) == self.contenders * self.turns_each


def _holder(ticket: Ticket) -> Holder:
    """Returns the holder that the ticket becomes, once it is granted."""
    return Holder(
        nonce=ticket.nonce,
        session=ticket.session,
        job=ticket.job,
        run=ticket.session,
        host="h",
        boot_id="b",
        pid=1,
        pid_start=1,
        jvm_pid=None,
        jvm_start=None,
        token_ids=(),
        batch=None,
        tables=(),
        since_ms=0,
    )


class Losing:
    """A store that can lose a request before it acts on it, or the reply after it."""

    def __init__(self, inner: TurnStore, what: str) -> None:
        self._inner, self._what = inner, what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def lost_compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        """Makes a change whose outcome the caller does not learn."""
        if self._what == "reply":
            self._inner.compare_and_set(lock, record, version)
        return "unknown"


class _LosingAt:
    """A store whose n-th change, counted from 1, is lost."""

    def __init__(self, inner: TurnStore, at: int) -> None:
        self._inner, self._left = inner, at
        self._lost: LockRecord | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        self._left -= 1
        if self._left:
            return self._inner.compare_and_set(lock, record, version)
        self._lost = record
        return cast(Losing, self._inner).lost_compare_and_set(lock, record, version)

    def lost_what(self, job: JobName) -> str:
        """Returns which change of the job's turn was lost, judged by the record that it wanted to write."""
        lost = self._lost
        if lost is None:
            return "nothing"
        if lost.holder is not None and lost.holder.job == job:
            return "granted"
        if any(ticket.job == job for ticket in lost.tickets):
            return "asked"
        return "completed" if job in lost.jobs else "made"


def _complete_when_asked(held: HeldTurn, store: TurnStore, job: JobName) -> None:
    """Gives a turn back when a job waits for it."""
    deadline_s = time.monotonic() + 60.0
    record = None
    while time.monotonic() < deadline_s and not (record and any(ticket.job == job for ticket in record.tickets)):
        time.sleep(0.005)
        record = store.read(LOCK).record
    held.complete()


def _check_ended(store: TurnStore, job: Coordinator, turn: HeldTurn) -> None:
    """Checks that the job had exactly this one turn, that no turn followed, and that nothing is left of it."""
    after = store.read(LOCK).record
    assert after is not None
    assert (after.holder, after.tickets, after.epoch) == (None, (), turn.epoch)
    assert after.job(job.job).turns == 1


def contender(store: TurnStore, job: str, events: Recorder | None = None) -> Coordinator:
    """Makes a run of a job on `LOCK`."""
    ports = RunnerPorts(
        store=store, log=FakeTableLog(), clock=MachineClock(), randomness=Uuids(), events=events or Recorder()
    )
    order = Order(rule=NoRule(), absent_after_ms=None)
    process = Process(host="h", boot_id="b", pid=1, pid_start=1)
    return Coordinator(ports, lock=LOCK, job=job, order=order, process=process, lock_timeout_s=200.0)


def take(coordinator: Coordinator, *, timeout_s: float | None = None) -> HeldTurn:
    """Waits for the run's next turn and returns it."""
    return coordinator.take(
        token_id=job_token(coordinator.job), query_id=None, batch=0, tables=(T,), timeout_s=timeout_s
    )
