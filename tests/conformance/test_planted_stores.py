"""A store that breaks a promise fails the suite: each of these has one fault, and a test that finds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from harness.conformance import history
from harness.conformance.turn_store import Losing, TurnStoreConformance
from lakegate.errors import LakegateError
from lakegate.ids import Epoch, JobName, Nonce
from lakegate.turns.ports import TurnStore
from lakegate.turns.protocol.effects import CasReply, Stored
from lakegate.turns.protocol.lock_record import LockRecord, record_from_json
from lakegate.turns.protocol.transitions import Sessions
from lakegate.turns.stores.memory import MemoryTurnStore, _Session


@dataclass
class Shared(MemoryTurnStore):
    """A store shared by all handles; none of them closes it."""

    def close(self) -> None:
        """Does nothing."""


@dataclass
class LostCheck(Shared):
    """Takes a change whatever version it was computed from: the check and the change are not one step."""

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        return super().compare_and_set(lock, record, self._records.get(lock, ("", 0))[1])


@dataclass
class GhostSession(Shared):
    """Goes on counting a session that was closed."""

    ghosts: list[_Session] = field(default_factory=list)

    def open_session(self, lock: str, job: JobName) -> _Session:
        session = super().open_session(lock, job)
        self.ghosts.append(session)
        return session

    def live_sessions(self, lock: str) -> Sessions:
        ghosts = [ghost for ghost in self.ghosts if ghost.lock == lock]
        return Sessions(ids=frozenset(g.id for g in ghosts), jobs=frozenset(g.job for g in ghosts))


@dataclass
class StaleRead(Shared):
    """Reads what was there one change before, as a server that lags behind the others."""

    before: dict[str, tuple[str, int]] = field(default_factory=dict)

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        was = self._records.get(lock, ("", 0))
        reply = super().compare_and_set(lock, record, version)
        if reply == "done":
            self.before[lock] = was
        return reply

    def read(self, lock: str) -> Stored:
        text, version = self.before.pop(lock, None) or self._records.get(lock, ("", 0))
        return Stored(record_from_json(text) if version else None, version)


@dataclass
class LostWakeUp(Shared):
    """Waits for the next change, and never looks whether there was one already."""

    def wait_for_change(self, lock: str, version: int, timeout_s: float, ticket_of: JobName | None = None) -> None:
        with self._changed:
            self._changed.wait(timeout_s)


@dataclass
class DeafWait(Shared):
    """Wakes no waiter after a change; every wait ends only at its timeout."""

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        with self._changed:
            if self._records.get(lock, ("", 0))[1] != version:
                return "stale"
            self._records[lock] = (record.to_json(), version + 1)
            return "done"


@dataclass
class WrongSignal(Shared):
    """Wakes the last who waits in place of the one whom the record lets in."""

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        with self._mutex:
            if self._records.get(lock, ("", 0))[1] != version:
                return "stale"
            self._records[lock] = (record.to_json(), version + 1)
            if record.tickets:
                self._ticket(lock, record.tickets[-1].job).notify_all()
            return "done"


@dataclass
class UnknownRounded(Shared):
    """Says "stale" of what it did: a reply that was lost is taken for a refusal, and the other way round."""

    calls: int = 0

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        self.calls += 1
        reply = super().compare_and_set(lock, record, version)
        return "done" if self.calls % 3 == 0 else reply


@dataclass
class SecondRun(Shared):
    """Lets a second run of a live job in."""

    def open_session(self, lock: str, job: JobName) -> _Session:
        number = len(self._sessions)
        session = super().open_session(lock, JobName(f"{number}"))
        session.job = job
        return session


@dataclass
class ForgottenSession(Shared):
    """Omits the run that came last, as a list that is read where it has not arrived yet."""

    def live_sessions(self, lock: str) -> Sessions:
        alive = self._alive(lock)[:-1]
        return Sessions(ids=frozenset(s.id for s in alive), jobs=frozenset(s.job for s in alive))


@dataclass
class NewestFirst(Shared):
    """Serves the last to ask first: a queue that is kept by the store in its own order."""

    def compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        was = self.read(lock).record
        is_asking = was is not None and len(record.tickets) > len(was.tickets)
        if is_asking:
            object.__setattr__(record, "tickets", (record.tickets[-1], *record.tickets[:-1]))
        return super().compare_and_set(lock, record, version)


class Suite(TurnStoreConformance):
    """Small enough to be run for each fault."""

    __test__ = False
    contenders, turns_each = 6, 10


CHECKS: dict[str, Callable[[Suite, Callable[[], TurnStore]], None]] = {
    "compare and set": lambda suite, open_store: suite.test_compare_and_set_takes_only_the_version_read(open_store),
    "closed session": lambda suite, open_store: suite.test_a_session_is_alive_until_it_is_closed(open_store),
    "dead session": lambda suite, open_store: suite.test_a_dead_session_leaves_nothing_behind(open_store),
    "second run": lambda suite, open_store: suite.test_a_second_run_of_a_live_job_is_refused(open_store),
    "acknowledged": lambda suite, open_store: suite.test_an_acknowledged_change_is_read_by_every_handle(open_store),
    "woken": lambda suite, open_store: suite.test_a_waiter_is_woken_by_a_change(open_store),
    "not waited for": lambda suite, open_store: suite.test_a_change_made_before_the_wait_begins_is_not_waited_for(
        open_store
    ),
    "let in": lambda suite, open_store: suite.test_a_waiting_job_is_woken_by_the_change_that_lets_it_in(open_store),
    "contenders": lambda suite, open_store: suite.test_contenders_do_not_overlap(open_store),
}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("planted", "check"),
    [
        (LostCheck, "compare and set"),
        (LostCheck, "contenders"),
        (GhostSession, "closed session"),
        (GhostSession, "dead session"),
        (StaleRead, "compare and set"),
        (StaleRead, "acknowledged"),
        (LostWakeUp, "not waited for"),
        (DeafWait, "contenders"),
        (WrongSignal, "let in"),
        (UnknownRounded, "contenders"),
        (SecondRun, "second run"),
        (ForgottenSession, "acknowledged"),
        (NewestFirst, "contenders"),
    ],
)
def test_a_store_with_a_fault_fails_the_suite(
    planted: type[Shared], check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same check passes without it."""
    monkeypatch.setattr(history, "WAIT_S", 1.5)
    monkeypatch.setattr(history, "GAP_S", 0.0005)
    monkeypatch.setattr(Suite, "limit_s", 8.0)
    sound = Shared()
    CHECKS[check](Suite(), lambda: sound)
    wrong = planted()
    with pytest.raises((AssertionError, pytest.fail.Exception, LakegateError)):
        CHECKS[check](Suite(), lambda: wrong)


class DoesItTwice(Losing):
    """Loses the reply, and carries the request out once more as soon as it can: a retry of what may have been done."""

    def lost_compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        self._inner.compare_and_set(lock, record, version)
        if self._what == "reply":
            self._inner.compare_and_set(lock, replace(record, epoch=Epoch(record.epoch + 1)), version + 1)
        return "unknown"


def losing(kind: type[Losing]) -> Callable[[TurnStore, str], nullcontext[TurnStore]]:
    """Returns the factory by which the suite loses calls."""
    return lambda store, what: nullcontext(cast(TurnStore, kind(store, what)))


def test_a_request_that_is_repeated_after_a_lost_reply_fails_the_suite() -> None:
    """A change that may have been made must be looked up, not repeated."""
    sound, wrong = Shared(), Shared()
    check = Suite().test_an_unknown_outcome_of_a_call_repeats_nothing
    check(lambda: sound, losing(Losing), "reply")
    with pytest.raises(AssertionError):
        check(lambda: wrong, losing(DoesItTwice), "reply")


class AsksTwice(Losing):
    """Loses the reply to an asking, and asks once more: a retry that takes a second place in the queue."""

    def lost_compare_and_set(self, lock: str, record: LockRecord, version: int) -> CasReply:
        reply = super().lost_compare_and_set(lock, record, version)
        if self._what == "reply" and record.tickets:
            again = replace(record.tickets[-1], nonce=Nonce("again"))
            self._inner.compare_and_set(lock, replace(record, tickets=(*record.tickets, again)), version + 1)
        return reply


def test_a_turn_request_that_is_repeated_after_a_lost_reply_fails_the_suite() -> None:
    """Only where another has the turn: else asking and grant are one change."""
    sound, wrong = Shared(), Shared()
    check = Suite().test_an_unknown_outcome_of_a_call_while_another_has_the_turn_repeats_nothing
    check(lambda: sound, losing(Losing), "reply")
    with pytest.raises((AssertionError, LakegateError)):
        check(lambda: wrong, losing(AsksTwice), "reply")
