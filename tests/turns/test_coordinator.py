"""The coordinator's runtime, on a store whose leases end on demand and tables that are lists."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from harness.fakes import FakeClock
from lakegate.errors import (
    CheckpointMismatch,
    Corrupt,
    Fenced,
    InvalidRequest,
    LakegateError,
    LostTurn,
    StoreUnavailable,
    TurnNotGranted,
    Unavailable,
)
from lakegate.ids import JobName, SessionId, TableLocation, Version
from lakegate.ops.verify import verify
from lakegate.ports import StatementConflict, WriteToken
from lakegate.telemetry.events import Noticed, TurnWaits
from lakegate.telemetry.ledger import LedgerSink
from lakegate.telemetry.ledger_days import read_ledger
from lakegate.turns.heartbeat import SELF_FENCE
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol import protocol, transitions
from lakegate.turns.protocol.effects import CasReply, StepMark, Stored, TableTokens
from lakegate.turns.protocol.fencing import query_token, unpack
from lakegate.turns.protocol.lock_record import LockRecord
from lakegate.turns.protocol.ordering import After
from lakegate.turns.protocol.protocol import CheckpointView
from tests.turns.coordinator_bench import LEASE_S, Bench, T, take


def test_a_turn_writes_once_and_says_so() -> None:
    """One data commit under the turn's token; the ledger's row names batches, versions and outcome."""
    bench = Bench()
    turn = take(bench.job("A"), "q", 0)
    assert turn.write(T, step=0, name="append", statement=bench.put)
    assert not turn.write(T, step=0, name="append", statement=bench.put), "the second time it is there already"
    turn.complete()
    row = bench.rows()[-1]
    assert (row.outcome, row.batches, row.versions) == ("replayed", (0, 0), {T: (0,)})
    assert len(bench.log.tables[T]) == 1


def test_tables_are_entered_at_the_same_time() -> None:
    """Entries of one turn into several tables wait for each other's reading here: each ends, and the record has all of them."""
    bench = Bench()
    tables = [TableLocation(f"/t{i}") for i in range(3)]
    for table in tables:
        bench.log.put(table, query_token("other"), 1 << 40, StepMark(name="x", offsets_sha256=None))
    turn = bench.job("A").take(token_id=query_token("q"), query_id="q", batch=0, tables=tuple(tables))
    turn.next_batch(0, "d")
    all_read, read = threading.Barrier(3, timeout=10), bench.log.read_tokens

    def read_together(table: TableLocation) -> TableTokens:
        all_read.wait()
        return read(table)

    with patch.object(bench.log, "read_tokens", read_together), ThreadPoolExecutor(3) as pool:
        assert list(pool.map(turn.enter, tables)) == [True, True, True]
    record = bench.store.read("L").record
    assert record is not None
    assert set(record.tables) == set(tables)
    assert all(bench.log.read_tokens(table).tokens[query_token("q")] for table in tables)
    turn.complete()


def test_a_writer_whose_lease_ends_fences_itself_before_others_may_follow() -> None:
    """At 0.8 of the lease since the sending of the last answered heartbeat nothing is written any more."""
    bench = Bench()
    first = bench.job("A")
    turn = take(first, "q", 0)
    bench.clock.advance(SELF_FENCE * LEASE_S - 0.01)
    turn.check()
    bench.clock.advance(0.02)
    with pytest.raises(LostTurn, match="heartbeat"):
        turn.write(T, step=0, name="append", statement=bench.put)
    assert bench.lost, "the loss is reported, so that the query can be stopped"
    assert T not in bench.log.tables
    with pytest.raises(TurnNotGranted):
        bench.job("B", jvm=2).take(token_id=query_token("r"), query_id="r", batch=0, tables=(T,))
    bench.clock.advance(0.2 * LEASE_S)
    assert bench.job("C", jvm=3).take(token_id=query_token("r"), query_id="r", batch=0, tables=(T,)).epoch > turn.epoch


def test_a_session_that_is_lost_between_two_turns_costs_no_turn() -> None:
    """A stream that runs once an hour outlives a night without the coordinator; with a turn in its hands it does not."""
    bench = Bench()
    run = bench.job("A")
    take(run, "q", 0).complete()
    bench.clock.advance(LEASE_S)
    turn = take(run, "q", 1)
    bench.clock.advance(LEASE_S)
    with pytest.raises(LostTurn):
        run.take(token_id=query_token("q"), query_id="q", batch=2, tables=(T,))
    with pytest.raises(LostTurn):
        turn.check()
    turn.abandon(None)
    take(run, "q", 1).complete()


def test_a_lease_once_lost_stays_lost() -> None:
    """An answer that comes late belongs to a session that others may have closed."""
    bench = Bench()
    first = bench.job("A")
    turn = take(first, "q", 0)
    bench.clock.advance(SELF_FENCE * LEASE_S)
    with pytest.raises(LostTurn):
        turn.check()
    bench.clock.advance(-LEASE_S)
    with pytest.raises(LostTurn):
        turn.check()


def test_a_zombie_is_fenced_by_its_successor() -> None:
    """Even where every clock fails: the successor's entry commit makes the table refuse the old turn."""
    bench = Bench(lease_s=None)
    old = bench.job("A")
    turn = take(old, "q", 0)
    turn.write(T, step=0, name="append", statement=bench.put)
    turn.next_batch(1, "e")
    assert old._session is not None
    bench.store._end(old._session)  # the store forgets it, the process goes on
    new = bench.job("B", jvm=2)
    successor = take(new, "r", 0)
    turn._driver.check = lambda: None  # the zombie does not notice by itself
    with pytest.raises((Fenced, LostTurn)):
        turn.write(T, step=0, name="append", statement=bench.put)
    assert unpack(bench.log.read_tokens(T).tokens[query_token("q")]).epoch == successor.epoch
    assert sum(commit.mark is not None for commit in bench.log.tables[T]) == 1


def test_giving_up_leaves_no_ticket() -> None:
    """The next job in the queue is served at once, and the error of the one that gave up names the holder."""
    bench = Bench(lease_s=None)
    first = bench.job("A")
    turn = take(first, "q", 0)
    second = bench.job("B", jvm=2)
    with pytest.raises(TurnNotGranted, match="A has the turn"):
        second.take(token_id=query_token("r"), query_id="r", batch=0, tables=(T,))
    assert bench.rows()[-1].outcome == "gave_up"
    record = second.record()
    assert record is not None
    assert record.tickets == ()
    turn.complete()
    take(second, "r", 0).complete()
    assert any(isinstance(event, TurnWaits) for event in bench.seen.events)


def test_the_jvm_of_a_dead_holder_is_waited_for() -> None:
    """Its Python is gone, its JVM may still commit: no other job gets the turn before that process has ended."""
    bench = Bench(lease_s=None)
    first = bench.job("A", jvm=7)
    turn = take(first, "q", 0)
    assert first._session is not None
    bench.store._end(first._session)
    bench.running.add((7, 1))
    with pytest.raises(TurnNotGranted):
        bench.job("B", jvm=2).take(token_id=query_token("r"), query_id="r", batch=0, tables=(T,))
    bench.running.clear()
    assert (
        bench.job("C", jvm=3).take(token_id=query_token("s"), query_id="s", batch=0, tables=(T,)).epoch
        == turn.epoch + 1
    )


def test_an_unclean_end_puts_the_id_in_doubt_until_the_next_entry_commit() -> None:
    """A transaction of it may still be running; the next turn raises its number before it reads anything."""
    bench = Bench(lease_s=None)
    first = bench.job("A")
    turn = take(first, "q", 0)
    turn.write(T, step=0, name="append", statement=bench.put)
    turn.abandon(RuntimeError("cut off\nsecond line"))
    record = first.record()
    assert record is not None
    assert record.doubts(T) == {query_token("q")}
    assert record.job(JobName("A")).lost == (turn.epoch, 0)
    # The text of an error that is not ours may repeat values; its type does not.
    assert (bench.rows()[-1].outcome, bench.rows()[-1].reason) == ("failed", "RuntimeError")
    after = take(bench.job("B", jvm=2), "r", 0)
    record = first.record()
    assert record is not None
    assert record.doubts(T) == frozenset()
    assert unpack(bench.log.read_tokens(T).tokens[query_token("q")]).epoch == after.epoch


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LakegateError("the work was wrong")], ids=repr)
def test_a_turn_that_others_had_closed_is_noted_as_lost_whatever_ends_it(error: BaseException) -> None:
    """Its holder's note comes late, and is no sign that two had the turn at once."""
    bench = Bench(lease_s=None)
    broken = take(bench.job("A"), "q", 0)
    stored = bench.store.read("L")
    assert stored.record is not None
    bench.store.compare_and_set("L", transitions.close(stored.record), stored.version)
    bench.clock.advance(1)
    take(bench.job("B", jvm=2), "r", 0).complete()
    bench.clock.advance(1)
    broken.abandon(error)
    assert [(row.job, row.outcome) for row in bench.rows()] == [("B", "completed"), ("A", "lost")]
    assert verify(bench.rows(), [], {}).violations == []


@pytest.mark.parametrize("kind", ["", "lose request", "lose reply"])
@pytest.mark.parametrize("closes", ["another job", "the next run of the job"])
def test_a_killed_turn_is_reported_once_by_the_run_that_closes_it(kind: str, closes: str, tmp_path: Path) -> None:
    """A killed process writes nothing; whether the change that closed its turn was stored may be known only from the next read."""
    bench = Bench(lease_s=None)
    killed = take(bench.job("A"), "q", 7)
    bench.clock.advance(3)
    bench.store._sessions.clear()  # its process is dead
    bench.store = LosingStore(bench.store, lambda call: kind if call == 1 else "")
    if closes == "another job":
        after = take(bench.job("B", jvm=2), "r", 0)
    else:
        again = bench.job("A", jvm=2)
        again.begin(CheckpointView(last_committed=6, is_batch_open=True))
        after = take(again, "q", 7)
    after.complete()
    for row in bench.rows():
        LedgerSink(tmp_path).emit(row)
    lost, done = read_ledger(tmp_path)
    by = "B" if closes == "another job" else "A"
    assert (lost.job, lost.epoch, lost.outcome, lost.closed_by) == ("A", killed.epoch, "lost", by)
    assert lost.reason == f"its run did not complete batch 7; closed by {by}"
    assert lost.released_at_ms - (lost.granted_at_ms or 0) == 3000
    assert (done.epoch, done.outcome) == (after.epoch, "completed")
    assert verify([lost, done], [], {}).violations == []


def test_the_notes_of_two_turns_can_be_compared(tmp_path: Path) -> None:
    """Both are by the clock that runs with the machine, as is read back from the ledger."""
    bench = Bench(lease_s=None)
    for batch, name in enumerate("AB"):
        bench.clock.advance(1)
        turn = take(bench.job(name), name, batch)
        bench.clock.advance(1)
        turn.complete()
    for row in bench.rows():
        LedgerSink(tmp_path).emit(row)
    rows = read_ledger(tmp_path)
    assert rows == bench.rows()
    up_ms = [at_ms for row in rows for at_ms in (row.granted_up_ms, row.released_up_ms)]
    begun_ms = up_ms[0]
    assert begun_ms is not None
    assert up_ms == [begun_ms + seconds * 1000 for seconds in range(4)]
    assert {row.boot_id for row in rows} == {"b"}


def test_a_job_finds_its_lost_turn_done_in_its_own_checkpoint() -> None:
    """Only with the commit log written and no batch open; else the turn stays lost until the batch is done."""
    bench = Bench(lease_s=None)
    first = bench.job("A")
    turn = take(first, "q", 3)
    turn.abandon(None)
    for view, done in (
        (CheckpointView(last_committed=2, is_batch_open=True), 0),
        (CheckpointView(last_committed=3, is_batch_open=True), 0),
        (CheckpointView(last_committed=3, is_batch_open=False), turn.epoch),
    ):
        record = first.begin(view)
        assert record is not None
        assert record.job(JobName("A")).done == done


def test_a_checkpoint_that_went_back_halts() -> None:
    """The table holds a later batch: nothing is skipped in silence, and nothing written."""
    bench = Bench(lease_s=None)
    first = bench.job("A")
    turn = take(first, "q", 5)
    turn.write(T, step=0, name="append", statement=bench.put)
    turn.complete()
    turn = take(first, "q", 4)
    with pytest.raises(CheckpointMismatch, match="went back"):
        turn.write(T, step=0, name="append", statement=bench.put)


@pytest.mark.parametrize(("name", "digest"), [("append", "other"), ("merge", "d")])
def test_other_offsets_or_another_step_under_a_written_token_halt(name: str, digest: str) -> None:
    """A replay is skipped only if it is the same work."""
    bench = Bench(lease_s=None)
    first = bench.job("A")
    turn = take(first, "q", 0)
    turn.write(T, step=0, name="append", statement=bench.put)
    turn.abandon(None)
    turn = take(first, "q", 0, digest=digest)
    with pytest.raises(CheckpointMismatch, match="written to /t before"):
        turn.write(T, step=0, name=name, statement=bench.put)


def test_a_conflict_with_a_foreign_writer_repeats_the_statement_twenty_times() -> None:
    """Then it is Unavailable, and nothing was written; a statement that gets through earlier counts as written."""
    bench = Bench(lease_s=None)
    turn = take(bench.job("A"), "q", 0)
    calls: list[int] = []

    def losing(token: WriteToken) -> None:
        calls.append(1)
        if len(calls) != 25:
            raise StatementConflict("ConcurrentAppendException")
        bench.put(token)

    with pytest.raises(Unavailable, match="20 times"):
        turn.write(T, step=0, name="append", statement=losing)
    assert len(calls) == 20
    assert turn.write(T, step=0, name="append", statement=losing)
    assert len(calls) == 25


def test_after_lets_in_when_the_predecessor_is_idle_or_has_completed() -> None:
    """And the reason to wait names it."""
    bench = Bench(lease_s=None)
    ingestion, mutation = bench.job("I"), bench.job("M", After(("I",)), jvm=2)
    with pytest.raises(TurnNotGranted, match="waits for I"):
        mutation.take(token_id=query_token("m"), query_id="m", batch=0, tables=(T,))
    ingestion.announce_idle({})
    take(mutation, "m", 0).complete()
    turn = take(ingestion, "i", 0)
    turn.complete()
    assert take(mutation, "m", 1).predecessor == "I"


def test_a_job_that_found_work_is_not_idle_before_its_request() -> None:
    """Its successors wait from then on; a run whose session is lost does not remove the note of the next run."""
    bench = Bench()
    ingestion, mutation = bench.job("I"), bench.job("M", After(("I",)), jvm=2)
    ingestion.announce_idle({})
    ingestion.find_work()
    with pytest.raises(TurnNotGranted, match="waits for I"):
        mutation.take(token_id=query_token("m"), query_id="m", batch=0, tables=(T,))
    ingestion.announce_idle({})
    stored = bench.store.read("L")
    assert ingestion._driver.run(protocol.find_work(ingestion.job, SessionId("gone"))) is False
    assert bench.store.read("L") == stored
    take(mutation, "m", 0).complete()


def test_a_waiting_job_knows_whose_turns_may_come_before() -> None:
    """By the record as it will be when the turn that is on has ended: so by the rules, too, which let in after it."""
    bench = Bench(lease_s=None)
    first, second, third = bench.job("I"), bench.job("M", After(("I",)), jvm=2), bench.job("T", After(("M",)), jvm=3)
    assert third.before() == set(), "there is no record yet"
    turn = take(first, "i", 0)
    assert third.before() == {"I"}
    with ThreadPoolExecutor(2) as pool:
        waiting = []
        try:
            for name, job in (("t", third), ("m", second)):
                begin = partial(job.take, token_id=query_token(name), query_id=name, batch=0, tables=(T,), timeout_s=60)
                waiting.append(pool.submit(begin))
                for _ in range(1000):
                    record = bench.store.read("L").record
                    if record is not None and len(record.tickets) == len(waiting):
                        break
                    time.sleep(0.01)
            assert (second.before(), third.before()) == ({"I"}, {"I", "M"})
            turn.complete()
            turn = waiting[1].result()
            assert (first.before(), third.before()) == ({"M", "T"}, {"M"})
            turn.complete()
            waiting[0].result().complete()
        finally:
            for job in (second, third):
                job.cancel()
    assert first.before() == set()


def test_a_job_says_in_which_run_it_is_idle_and_that_it_leaves_it() -> None:
    """A note of another run is written again; a job that has left is not waited for."""
    bench = Bench(lease_s=None)
    job = bench.job("I")
    heads = {job.job: {T: Version(3)}}

    def is_settled(run: str) -> bool:
        record = job.record()
        assert record is not None
        return transitions.is_settled(record, heads, job.live(), run=run)

    job.announce_idle(heads[job.job], run="first")
    assert (is_settled("first"), is_settled("second")) == (True, False)
    job.announce_idle(heads[job.job], run="second")
    job.announce_idle({T: Version(2)}, run="second")
    assert not is_settled("second")
    job.leave("second")
    assert (is_settled("first"), is_settled("second")) == (False, True)


def test_clocks_twenty_minutes_apart_cost_nobody_a_turn() -> None:
    """Turns go round, each write is once in the table, epochs rise; the machine with the late clock is reported, once."""
    bench = Bench(lease_s=None)
    ahead, behind = FakeClock(bench.clock.now_s + 600), FakeClock(bench.clock.now_s - 600)
    jobs = {"A": bench.job("A", clock=ahead), "B": bench.job("B", After(("A",)), jvm=2, clock=behind)}
    epochs = []
    for batch in range(3):
        for name, job in jobs.items():
            turn = take(job, name, batch)
            assert turn.write(T, step=0, name="append", statement=bench.put)
            turn.complete()
            epochs.append(turn.epoch)
    assert epochs == sorted(set(epochs))
    assert sum(commit.mark is not None for commit in bench.log.tables[T]) == 6
    told = [(event.job, event.text) for event in bench.seen.events if isinstance(event, Noticed)]
    assert [job for job, _ in told] == ["B"]
    assert "is 20 minutes behind another's on the lock L" in told[0][1]


def test_a_step_number_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    """128 steps in a batch are one too many."""
    bench = Bench(lease_s=None)
    turn = take(bench.job("A"), "q", 0)
    with pytest.raises(ValueError, match="128"):
        turn.write(T, step=128, name="x", statement=bench.put)
    assert T not in bench.log.tables


class LosingStore:
    """A store that loses some replies of compare-and-set, and some requests, and says "unknown" of both."""

    def __init__(self, inner: TurnStore, plan: Callable[[int], str]) -> None:
        self._inner, self._plan, self._calls = inner, plan, 0
        self.lost: list[LockRecord] = []

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        self._calls += 1
        match self._plan(self._calls):
            case "lose request":
                self.lost.append(record)
                return "unknown"
            case "lose reply":
                self.lost.append(record)
                self._inner.compare_and_set(lock, record, version)
                return "unknown"
            case _:
                return self._inner.compare_and_set(lock, record, version)


class FailingStore:
    """A store whose next reading of the record raises."""

    def __init__(self, inner: TurnStore) -> None:
        self._inner = inner
        self.error: BaseException | None = None

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    def read(self, lock: str) -> Stored:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self._inner.read(lock)


@pytest.mark.parametrize("error", [StoreUnavailable(), InvalidRequest(), Corrupt(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("end", ["complete", "abandon"])
def test_a_turn_that_cannot_be_given_back_blocks_no_other_job(end: str, error: BaseException) -> None:
    """Its run is not counted as alive any more, so others close the turn, and so does the job's own next one."""
    bench = Bench()
    bench.store = failing = FailingStore(bench.store)
    job, other = bench.job("A"), bench.job("B", jvm=2)
    for who in (other, job):
        turn = take(job, "q", 0)
        failing.error = error
        if end == "abandon" and isinstance(error, LakegateError):
            turn.abandon(RuntimeError("cut off"))  # the error names the reason of the end
        else:
            with pytest.raises(type(error)):
                turn.complete() if end == "complete" else turn.abandon(None)
        after = take(who, "r", 0)
        assert after.epoch > turn.epoch
        after.complete()


@pytest.mark.parametrize("kind", ["lose request", "lose reply"])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_lost_message_at_any_step_changes_nothing(kind: str, at: int) -> None:
    """Every compare-and-set whose outcome is unknown is found out by reading again."""
    bench = Bench(lease_s=None)
    bench.store = losing = LosingStore(bench.store, lambda call: kind if call == at else "")
    for batch in range(2):
        turn = take(bench.job("A"), "q", batch)
        turn.write(T, step=0, name="append", statement=bench.put)
        turn.complete()
        assert bench.store.read("L").record is not None
        bench.store._inner._sessions.clear()  # the run ends
    assert len(losing.lost) == 1
    record = bench.store.read("L").record
    assert record is not None
    assert (record.epoch, record.job(JobName("A")).turns, record.tickets, record.holder) == (1025, 2, (), None)


@pytest.mark.parametrize("kind", ["lose request", "lose reply"])
@pytest.mark.parametrize(("at", "change"), [(1, "asked"), (2, "granted"), (3, "completed")])
def test_a_lost_message_while_another_has_the_turn_changes_nothing(kind: str, at: int, change: str) -> None:
    """Then asking is a change of its own: the place in the queue is found again, or taken once."""
    bench = Bench(lease_s=None)
    held = take(bench.job("A"), "q", 0)
    losing = LosingStore(bench.store, lambda call: kind if call == at else "")
    losing.wait_for_change = lambda *told: held.complete()
    bench.store = losing
    turn = take(bench.job("B", jvm=2, timeout_s=5.0), "r", 0)
    assert turn.write(T, step=0, name="append", statement=bench.put)
    turn.complete()
    [lost] = losing.lost
    seen = "asked" if lost.tickets else "granted" if lost.holder else "completed"
    assert seen == change
    record = bench.store.read("L").record
    assert record is not None
    assert (record.epoch, record.job(JobName("B")).turns, record.tickets, record.holder) == (turn.epoch, 1, (), None)
    assert turn.epoch == held.epoch + 1


class CountingStore:
    """A store that counts what it is asked."""

    def __init__(self, inner: TurnStore) -> None:
        self._inner, self.calls = inner, Counter[str]()

    def __getattr__(self, name: str):
        self.calls[name] += 1
        return getattr(self._inner, name)


def test_a_run_does_not_read_what_it_has_just_written() -> None:
    """An uncontended turn makes five requests to the store: two reads of the record, one of live runs, two changes."""
    bench = Bench(lease_s=None)
    bench.store = counting = CountingStore(bench.store)
    job = bench.job("A")
    for batch in range(2):  # the first makes the record
        counting.calls.clear()
        job.take(token_id=query_token("q"), query_id="q", batch=batch, tables=()).complete()
    asked = {name: counting.calls[name] for name in ("read", "live_sessions", "compare_and_set")}
    assert asked == {"read": 2, "live_sessions": 1, "compare_and_set": 2}
