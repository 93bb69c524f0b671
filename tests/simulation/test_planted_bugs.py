"""Each rule of the turn protocol, left out once: the simulator finds the hole, with a shortest way to it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness import answers, jobs
from harness.jobs import Batch, BatchEnd, Job, WriteCommitLog
from harness.scenarios import SCENARIOS
from harness.simulator import explore, planted
from lakegate.effects import Steps, perform
from lakegate.ids import Epoch
from lakegate.turns.protocol import fencing, ordering, protocol, transitions
from lakegate.turns.protocol.effects import (
    CommitEntry,
    CompareAndSet,
    LiveSessions,
    ReadRecord,
    ReadTokens,
    WaitForChange,
)
from lakegate.turns.protocol.fencing import Applied, FencedBy, NotApplied, Token, TokenReading
from lakegate.turns.protocol.lock_record import LockRecord, Ticket

real_plan_entry, real_ask, real_close, real_grant = (
    fencing.plan_entry,
    transitions.ask,
    transitions.close,
    transitions.grant,
)
real_outdated = transitions.outdated
real_enter_table = protocol.enter_table
real_check_fence = protocol.check_fence
real_reason_to_wait = transitions.reason_to_wait
real_ranked, real_pause, real_not_yet = ordering.ranked, transitions.pause, ordering._not_yet


def one_integer(stored: int | None, mine: Token) -> TokenReading:
    """A zombie takes the fence of its successor for its own success."""
    return Applied() if stored is not None and stored >= mine.pack() else NotApplied()


def entry_spares_own_id(found: Any, *, mine: Any, in_doubt: Any, **rest: Any) -> Any:
    """Only others are fenced; the job's own earlier run is not."""
    return real_plan_entry(found, mine=mine, in_doubt=in_doubt - {mine}, **rest)


def entry_trusts_new_tables(found: Any, *, is_known: bool, **rest: Any) -> Any:
    """A record made from nothing is taken to know who may still be writing."""
    return real_plan_entry(found, is_known=True, **rest)


def cleared(stored: int | None, epoch: Epoch) -> int:
    """The entry commit forgets which batch the table holds."""
    return Token(epoch=epoch, batch=-1).pack()


def no_fence_seen(table: Any, token_id: Any, epoch: Epoch) -> Steps[FencedBy | None]:
    """The token is not read again after the statement."""
    yield from ()
    return None


def no_fence_seen_by_a(table: Any, token_id: Any, epoch: Epoch) -> Steps[FencedBy | None]:
    """Job A does not read the token again after the statement."""
    fence = None
    if not token_id.startswith("lakegate/A"):
        fence = yield from real_check_fence(table, token_id, epoch)
    return fence


def grant_taken_as_refused(lock: str, attempt: Any, rule: Any) -> Steps[Any]:
    """A compare-and-set whose reply is lost counts as not made."""
    me, nonce = attempt.holder, attempt.nonce
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        live = yield from perform(LiveSessions(record.holder))
        if me.session not in live.ids:
            return protocol.SessionLost()
        if record.ticket(nonce) is None:
            ticket = Ticket(job=me.job, session=me.session, nonce=nonce, asked_at_ms=0)
            asked = transitions.ask(record, ticket, rule.rule, rule.absent_after_ms)
            yield from perform(CompareAndSet(asked, stored.version))
            continue
        if record.holder is not None and record.holder.session not in live.ids:
            yield from perform(CompareAndSet(transitions.close(record), stored.version))
            continue
        if transitions.reason_to_wait(record, nonce, live, 0) is not None:
            yield from perform(WaitForChange(stored.version, ""))
            continue
        granted = transitions.grant(record, me)
        reply = yield from perform(CompareAndSet(granted, stored.version))
        if reply == "done":
            return protocol.Granted(epoch=granted.epoch, predecessor=None, asked_at_ms=0, since_ms=0)
        if reply == "unknown":
            return protocol.NotGranted(reason="", holder=None)


def dead_turns_need_a_grant(lock: str, attempt: Any, rule: Any) -> Steps[Any]:
    """The turn of a dead holder is closed only by the job that is let in next."""
    me, nonce = attempt.holder, attempt.nonce
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record.is_held_by(nonce):
            return protocol.Granted(epoch=record.epoch, predecessor=None, asked_at_ms=0, since_ms=0)
        live = yield from perform(LiveSessions(record.holder))
        if me.session not in live.ids:
            return protocol.SessionLost()
        if record.ticket(nonce) is None:
            ticket = Ticket(job=me.job, session=me.session, nonce=nonce, asked_at_ms=0)
            asked = transitions.ask(record, ticket, rule.rule, rule.absent_after_ms)
            yield from perform(CompareAndSet(asked, stored.version))
            continue
        is_dead = record.holder is not None and record.holder.session not in live.ids
        free = transitions.close(record) if is_dead else record
        if transitions.reason_to_wait(free, nonce, live, 0) is not None:
            yield from perform(WaitForChange(stored.version, ""))
            continue
        yield from perform(CompareAndSet(transitions.grant(free, me), stored.version))


def begins_without_its_session(job: Any, checkpoint: Any, session: Any = None) -> Steps[LockRecord | None]:
    """A job does not close a turn that the record gives to its own live session."""
    return (yield from protocol.begin(job, checkpoint))


def begins_without_looking(job: Any, checkpoint: Any, session: Any = None) -> Steps[LockRecord | None]:
    """A job does not clear up what its earlier run left."""
    stored = yield from perform(ReadRecord())
    return stored.record


def releases_before_the_commit_log(job: Job, turn: Any, batch: Batch) -> Steps[BatchEnd]:
    """The turn is completed when the function returns."""
    end = yield from jobs.write_batch(job, turn, batch, frozenset())
    if end != "written":
        return end
    yield from protocol.complete(turn)
    yield from perform(WriteCommitLog(turn.token_id, batch))
    return "written"


def gives_up_by_returning(job: Job, session: Any, nonce: Any, token_id: Any, batch: Batch) -> Steps[Any]:
    """A turn that is not granted ends the function as if the batch were written."""
    granted = yield from jobs.take_turn(
        jobs.LOCK, jobs._attempt(job, session, nonce, token_id, batch), jobs._order(job)
    )
    if isinstance(granted, protocol.Granted):
        return protocol.GrantedTurn(lock=jobs.LOCK, job=job.name, nonce=nonce, epoch=granted.epoch, token_id=token_id)
    if isinstance(granted, protocol.NotGranted):
        yield from perform(WriteCommitLog(token_id, batch))
    return protocol.NotGranted(reason="", holder=None)


def enters_in_two_breaths(turn: Any, table: Any, *, is_written: bool) -> Steps[Any]:
    """The entry commit is not made at the version that it was planned from, but at whatever comes next."""
    stored = yield from perform(ReadRecord())
    record = stored.record
    if record is None or not record.is_held_by(turn.nonce):
        return protocol.NotHolder()
    reading = yield from perform(ReadTokens(table))
    raised = real_plan_entry(
        reading.tokens,
        lock=turn.lock,
        epoch=turn.epoch,
        mine=turn.token_id,
        in_doubt=record.doubts(table),
        is_known=table in record.tables,
        raises_own=False,
        is_written=is_written,
    )
    while not isinstance(raised, FencedBy) and raised:
        head = yield from perform(ReadTokens(table))
        committed = yield from perform(CommitEntry(table, head.version, tuple(raised.items())))
        if committed == "done":
            break
    return raised if isinstance(raised, FencedBy) else protocol.Entered(version=None)


def first_write_makes_the_table(turn: Any, table: Any, *, is_written: bool) -> Steps[Any]:
    """A table that does not exist is taken to need no entry."""
    opened = yield from real_enter_table(turn, table, is_written=is_written)
    return protocol.Entered(version=None) if isinstance(opened, protocol.NoTable) else opened


def keeps_idle(record: LockRecord, ticket: Ticket, rule: Any, absent_after_ms: int | None) -> LockRecord:
    """Asking does not take the idle note back."""
    before, after = record.job(ticket.job), real_ask(record, ticket, rule, absent_after_ms)
    state = replace(after.job(ticket.job), idle_since_ms=before.idle_since_ms)
    return replace(after, jobs={**after.jobs, ticket.job: state})


class OfAZombie:
    """A run whose session is lost may still say that its job is idle."""

    @staticmethod
    def announce_idle(lock: str, job: Any, session: Any, rule: Any, idle_at: Any) -> Steps[bool]:
        while True:
            stored = yield from perform(ReadRecord())
            record = stored.record
            if record.job(job).idle_since_ms is not None:
                return True
            idle = transitions.go_idle(record, job, idle_at, rule.rule, rule.absent_after_ms, now_ms=0)
            yield from perform(CompareAndSet(idle, stored.version))


def absent_is_absent(name: str, view: Any, mine: int, **_: Any) -> str | None:
    """Lets a job that is not running block no other job, even with an unfinished batch."""
    return name if view is None or (view.done <= mine and view.idle_since_ms is None and view.is_live) else None


def leaves_no_doubt(record: LockRecord) -> LockRecord:
    """An unclean end is taken to have stopped the JVM."""
    return replace(real_close(record), in_doubt=record.in_doubt)


def trusts_its_tables(record: LockRecord, known_epoch: Epoch) -> LockRecord:
    """An older copy is taken to know who may still be writing."""
    return replace(real_outdated(record, known_epoch), tables=record.tables)


def same_epoch(record: LockRecord, holder: Any) -> LockRecord:
    """A grant does not count up."""
    return replace(real_grant(record, holder), epoch=record.epoch)


def last_come_first_served(record: LockRecord, nonce: Any, live: Any, now_ms: int) -> Any:
    """The queue is served from its end."""
    return real_reason_to_wait(replace(record, tickets=record.tickets[::-1]), nonce, live, now_ms)


def holder_is_no_reason(record: LockRecord, nonce: Any, live: Any, now_ms: int) -> Any:
    """A turn is granted while another is on."""
    return real_reason_to_wait(replace(record, holder=None), nonce, live, now_ms)


def waiting_counts_for_nothing(claims: Any, at_ms: int) -> Any:
    """The priority alone decides."""
    return real_ranked(claims, 0)


def priority_counts_for_nothing(claims: Any, at_ms: int) -> Any:
    """First come, first served, whatever was said."""
    return [(0.0, claim) for claim in claims]


def paused_still_asks(record: LockRecord, job: Any, pause: Any) -> LockRecord:
    """A job that is paused keeps its ticket."""
    return replace(real_pause(record, job, pause), tickets=record.tickets)


def paused_is_nothing_to_the_turn(lock: str, attempt: Any, rule: Any) -> Steps[Any]:
    """A paused job takes its turn all the same."""
    me, nonce = attempt.holder, attempt.nonce
    while True:
        stored = yield from perform(ReadRecord())
        record = stored.record
        if record.is_held_by(nonce):
            return protocol.Granted(epoch=record.epoch, predecessor=None, asked_at_ms=0, since_ms=0)
        live = yield from perform(LiveSessions(record.holder))
        if record.ticket(nonce) is None:
            ticket = Ticket(job=me.job, session=me.session, nonce=nonce, asked_at_ms=0)
            asked = transitions.ask(record, ticket, rule.rule, rule.absent_after_ms)
            yield from perform(CompareAndSet(asked, stored.version))
            continue
        if real_reason_to_wait(replace(record, paused={}), nonce, live, 0) is not None:
            yield from perform(WaitForChange(stored.version, ""))
            continue
        yield from perform(CompareAndSet(transitions.grant(record, me), stored.version))


def paused_is_not_absent(name: str, view: Any, mine: int, **rest: Any) -> str | None:
    """Successors wait for a paused job."""
    return real_not_yet(name, None if view is None else replace(view, is_paused=False), mine, **rest)


def paused_is_always_absent(name: str, view: Any, mine: int, **rest: Any) -> str | None:
    """Successors do not wait for a paused job, even over its unfinished batch."""
    return None if view is not None and view.is_paused else real_not_yet(name, view, mine, **rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A bug, where it is found, and what is said then."""

    patches: tuple[tuple[Any, str, Any], ...]
    scenario: str
    says: str


TWICE, NOT_THERE, ISOLATION, ORDER = "applied twice", "not in the table", "turn isolation", "order:"
PLANTS: dict[str, Plant] = {
    "packed number compared as one integer": Plant(
        patches=((protocol, "read_token", one_integer),), scenario="expire", says=NOT_THERE
    ),
    "own id is not fenced on a replay": Plant(
        patches=((protocol, "plan_entry", entry_spares_own_id),), scenario="expire", says=TWICE
    ),
    "fence clears the low bits": Plant(patches=((fencing, "_with_epoch", cleared),), scenario="expire", says=TWICE),
    "fence is no compare-and-set": Plant(
        patches=((jobs, "enter_table", enters_in_two_breaths),), scenario="expire", says=TWICE
    ),
    "first write makes the table, own orphan": Plant(
        patches=((jobs, "enter_table", first_write_makes_the_table),), scenario="missing-table-crash", says=TWICE
    ),
    "first write makes the table, zombie": Plant(
        patches=((jobs, "enter_table", first_write_makes_the_table),), scenario="missing-table-expire", says=ISOLATION
    ),
    "no reading after the statement": Plant(
        patches=((protocol, "check_fence", no_fence_seen),), scenario="expire", says=NOT_THERE
    ),
    "no reading after a statement that wrote nothing": Plant(
        patches=((protocol, "check_fence", no_fence_seen_by_a),), scenario="nothing-expire", says="matched nothing"
    ),
    "lost reply of a grant taken as no": Plant(
        patches=((jobs, "take_turn", grant_taken_as_refused), (jobs, "begin", begins_without_its_session)),
        scenario="lost",
        says="deadlock",
    ),
    "turn released before the commit log": Plant(
        patches=((jobs, "work_in_turn", releases_before_the_commit_log),), scenario="after-crash", says=ORDER
    ),
    "giving up returns": Plant(patches=((jobs, "take", gives_up_by_returning),), scenario="give-up", says=NOT_THERE),
    "epoch + 1 on a new record": Plant(patches=((transitions, "JUMP", 1),), scenario="wipe", says=ISOLATION),
    "new record trusts the tables": Plant(
        patches=((protocol, "plan_entry", entry_trusts_new_tables),), scenario="wipe", says=ISOLATION
    ),
    "asking keeps the idle note": Plant(patches=((transitions, "ask", keeps_idle),), scenario="after-idle", says=ORDER),
    "a zombie says idle": Plant(
        patches=((jobs, "announce_idle", OfAZombie.announce_idle),), scenario="after-idle-zombie", says=ORDER
    ),
    "absent over an unfinished batch": Plant(
        patches=((ordering, "_not_yet", absent_is_absent),), scenario="absent", says=ORDER
    ),
    "closing a dead turn needs a grant": Plant(
        patches=((jobs, "take_turn", dead_turns_need_a_grant), (jobs, "begin", begins_without_looking)),
        scenario="strict-ring-crash",
        says="deadlock",
    ),
    "a lost turn is never found to be done": Plant(
        patches=((jobs, "begin", begins_without_looking),), scenario="strict-ring-crash", says="deadlock"
    ),
    "an exception leaves no doubt": Plant(
        patches=((transitions, "close", leaves_no_doubt),), scenario="raises", says=TWICE
    ),
    "epoch does not rise": Plant(
        patches=((transitions, "grant", same_epoch),), scenario="plain", says="granted after epoch"
    ),
    "last come first served": Plant(
        patches=((transitions, "reason_to_wait", last_come_first_served),), scenario="bound", says="priority:"
    ),
    "waiting counts for nothing": Plant(
        patches=((transitions, "ranked", waiting_counts_for_nothing),), scenario="priority", says="bound:"
    ),
    "priority counts for nothing": Plant(
        patches=((transitions, "ranked", priority_counts_for_nothing),), scenario="priority", says="priority:"
    ),
    "a paused job takes turns": Plant(
        patches=((jobs, "take_turn", paused_is_nothing_to_the_turn), (transitions, "pause", paused_still_asks)),
        scenario="pause",
        says="pause:",
    ),
    "a paused job holds its successors up": Plant(
        patches=((ordering, "_not_yet", paused_is_not_absent),), scenario="pause-after", says="deadlock"
    ),
    "a paused job lets in over its unfinished batch": Plant(
        patches=((ordering, "_not_yet", paused_is_always_absent),), scenario="pause-after-crash", says=ORDER
    ),
    "nobody looks for a turn that an older copy does not know": Plant(
        patches=((answers, "_alive_now", lambda state: (state.live, None)),), scenario="restored-crash", says=ISOLATION
    ),
    "a turn is not noted apart from the record": Plant(
        patches=((answers, "_noted", lambda state, mark: (state, mark)),), scenario="restored", says=ISOLATION
    ),
    "an older copy trusts its tables": Plant(
        patches=((transitions, "outdated", trusts_its_tables),), scenario="restored", says=ISOLATION
    ),
    "a broken lock leaves no doubt": Plant(
        patches=((transitions, "close", leaves_no_doubt),), scenario="broken", says=ISOLATION
    ),
    "holder is no reason to wait": Plant(
        patches=((transitions, "reason_to_wait", holder_is_no_reason),), scenario="plain", says="two live holders"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTS)
def test_the_simulator_finds_a_planted_bug(bug: str) -> None:
    """Leaving a rule out breaks the invariant that the rule is there for, and the way to it can be shown."""
    plant = PLANTS[bug]
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == plant.scenario)
    with ExitStack() as bugs:
        for module, name, value in plant.patches:
            bugs.enter_context(planted(module, name, value))
        found = explore(scenario)
    assert plant.says in found.violation, found
    assert found.trace
