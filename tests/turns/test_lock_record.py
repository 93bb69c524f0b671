"""The lock record: its JSON form, and the moves that change it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation, TokenId, Version
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.fencing import JUMP
from lakegate.turns.protocol.lock_record import (
    FORMAT,
    Holder,
    InDoubt,
    JobState,
    LockRecord,
    Mark,
    Member,
    NewerFormat,
    Pause,
    Ticket,
    record_from_json,
)
from lakegate.turns.protocol.ordering import After, NoRule
from lakegate.turns.protocol.transitions import Sessions, Waits

A, B, C = JobName("A"), JobName("B"), JobName("C")
T, U = TableLocation("t"), TableLocation("u")
X = TokenId("lakegate/x")

names = st.text(min_size=1, max_size=8)
numbers = st.integers(0, 1 << 40)
maybe = st.none() | numbers
EXTRA = st.dictionaries(names.map("x-{}".format), st.lists(numbers), max_size=2)
HOLDERS = st.builds(
    Holder,
    nonce=names.map(Nonce),
    session=names.map(SessionId),
    job=names.map(JobName),
    run=names,
    host=names,
    boot_id=names,
    pid=numbers,
    pid_start=numbers,
    jvm_pid=maybe,
    jvm_start=maybe,
    token_ids=st.lists(names.map(TokenId)).map(tuple),
    batch=maybe,
    tables=st.lists(names.map(TableLocation)).map(tuple),
    since_ms=numbers,
    extra=EXTRA,
)
RULES = st.none() | st.just({"after": {"all": ["A"]}, "absent_after_ms": None}) | st.just({"strict": ["B"]})
STATES = st.builds(
    JobState,
    done=numbers.map(Epoch),
    lost=st.none() | st.tuples(numbers.map(Epoch), maybe),
    turns=numbers,
    completed_at_ms=maybe,
    idle_since_ms=maybe,
    idle_at=st.dictionaries(names.map(TableLocation), numbers.map(Version)),
    rule=RULES,
    extra=EXTRA,
)
RECORDS = st.builds(
    LockRecord,
    lock=names,
    epoch=numbers.map(Epoch),
    holder=st.none() | HOLDERS,
    tickets=st.lists(
        st.builds(
            Ticket,
            job=names.map(JobName),
            session=names.map(SessionId),
            nonce=names.map(Nonce),
            asked_at_ms=numbers,
            priority=numbers,
            aging_ms=maybe,
            extra=EXTRA,
        ),
        unique_by=lambda one: one.nonce,
    ).map(tuple),
    jobs=st.dictionaries(names.map(JobName), STATES, max_size=3),
    in_doubt=st.lists(
        st.builds(
            InDoubt,
            token_id=names.map(TokenId),
            epoch=numbers.map(Epoch),
            tables=st.lists(names.map(TableLocation)).map(tuple),
        )
    ).map(tuple),
    tables=st.dictionaries(names.map(TableLocation), numbers.map(Epoch)),
    paused=st.dictionaries(names.map(JobName), st.builds(Pause, since_ms=numbers, by=names, reason=names), max_size=2),
    members=st.dictionaries(names.map(JobName), st.builds(Member, run=names, has_left=st.booleans()), max_size=2),
    extra=EXTRA,
)


@given(RECORDS)
def test_a_record_comes_back_from_its_json_form_as_it_was(record: LockRecord) -> None:
    """With the keys that this version does not know; in one line."""
    text = record.to_json()
    assert record_from_json(text) == record
    assert "\n" not in text


@given(RECORDS, st.booleans(), st.sets(st.integers(0, 9)), numbers)
def test_the_woken_job_is_the_one_that_the_record_lets_in(
    record: LockRecord, has_holder: bool, dead: set[int], now_ms: int
) -> None:
    """A store wakes only `first_to_go`, so that must be the job that has no reason to wait."""
    record = record if has_holder else replace(record, holder=None)
    alive = [ticket for n, ticket in enumerate(record.tickets) if n not in dead]
    live = Sessions(ids=frozenset(t.session for t in alive), jobs=frozenset(t.job for t in alive))
    may_go = [t for t in record.tickets if transitions.reason_to_wait(record, t.nonce, live, now_ms) is None]
    first = transitions.first_to_go(record, live, now_ms)
    assert may_go == ([] if first is None else [first])


def test_unknown_keys_are_written_back() -> None:
    """A later version's additions survive an earlier version's move."""
    data = {**json.loads(LockRecord(lock="L", epoch=Epoch(1)).to_json()), "later": {"a": [1]}}
    record = record_from_json(json.dumps(data))
    moved = transitions.ask(record, ticket(A), NoRule(), None)
    assert json.loads(moved.to_json())["later"] == {"a": [1]}


def test_a_newer_format_is_refused() -> None:
    """Before anything else in it is looked at."""
    with pytest.raises(NewerFormat, match=f"up to {FORMAT}"):
        record_from_json(json.dumps({"format": FORMAT + 1}))


@pytest.mark.parametrize("text", ["{}", "[]", '{"format": 1}', "null", '{"format": "1"}', "not json"])
def test_what_is_not_a_record_is_refused(text: str) -> None:
    """It raises a ValueError that names the fault."""
    with pytest.raises(ValueError):
        record_from_json(text)


def ticket(job: JobName, n: int = 0) -> Ticket:
    return Ticket(job=job, session=SessionId(f"{job}{n}"), nonce=Nonce(f"{job}.{n}"), asked_at_ms=0)


def holder(job: JobName, n: int = 0, **changes: Any) -> Holder:
    made = Holder(
        nonce=Nonce(f"{job}.{n}"),
        session=SessionId(f"{job}{n}"),
        job=job,
        run="r",
        host="h",
        boot_id="b",
        pid=1,
        pid_start=1,
        jvm_pid=None,
        jvm_start=None,
        token_ids=(X,),
        batch=5,
        tables=(T,),
        since_ms=0,
    )
    return replace(made, **changes)


def live(*jobs: JobName) -> Sessions:
    return Sessions(ids=frozenset(SessionId(f"{job}0") for job in jobs), jobs=frozenset(jobs))


EMPTY = LockRecord(lock="L", epoch=Epoch(7))


def test_a_new_record_starts_above_what_left_no_trace() -> None:
    """The first grant is `JUMP` above the tables."""
    first = transitions.grant(transitions.begin_record("L", Epoch(40)), holder(A))
    assert first.epoch == 40 + JUMP


def test_a_mark_shows_that_a_record_is_an_older_copy() -> None:
    """By its epoch, or by the turn that has the same; a record of a version that noted none is not doubted at its own epoch."""
    granted = transitions.grant(EMPTY, holder(A))
    mine = Mark(granted.epoch, granted.granted or Nonce(""))
    assert not granted.is_older_than(None)
    assert not granted.is_older_than(mine)
    assert not granted.is_older_than(Mark(Epoch(7), Nonce("an earlier turn")))
    assert granted.is_older_than(Mark(granted.epoch, Nonce("another turn")))
    assert granted.is_older_than(Mark(Epoch(granted.epoch + 1), Nonce("a later turn")))
    assert not LockRecord(lock="L", epoch=granted.epoch).is_older_than(mine)


def test_an_older_copy_goes_on_above_what_is_known_and_trusts_nobody() -> None:
    """The turn, the tickets and the idle notes that it names are no more; jobs and pauses stay; it reads back as it was put."""
    copy = transitions.go_idle(transitions.grant(EMPTY, holder(A)), B, {T: Version(3)}, NoRule(), None, now_ms=9)
    copy = transitions.pause(
        replace(copy, tickets=(ticket(B),), tables={T: Epoch(3)}), A, Pause(since_ms=1, by="me", reason="")
    )
    after = transitions.outdated(copy, Epoch(40))
    assert (after.epoch, after.holder, after.tickets, after.tables) == (40 + JUMP - 1, None, (), {})
    assert after.job(B).idle_since_ms is None
    assert after.job(A).lost == (8, holder(A).batch)
    assert set(after.paused) == {A}
    assert not after.is_older_than(Mark(Epoch(40), Nonce("x")))
    assert record_from_json(after.to_json()) == after
    assert record_from_json(copy.to_json()).granted == "A.0"


def test_a_request_removes_the_idle_note_and_queues_last() -> None:
    """In one step; a job has one ticket."""
    idle = transitions.go_idle(EMPTY, A, {T: Version(3)}, NoRule(), None, now_ms=9)
    assert idle.job(A).idle_since_ms == 9
    asked = transitions.ask(
        transitions.ask(transitions.ask(idle, ticket(A), NoRule(), None), ticket(B), NoRule(), None),
        ticket(A, 1),
        NoRule(),
        None,
    )
    assert [t.nonce for t in asked.tickets] == ["B.0", "A.1"]
    assert asked.job(A).idle_since_ms is None


def test_a_ticket_that_may_not_go_blocks_nobody_behind_it() -> None:
    """First come, first served among those whose rule lets them in and whose session lives."""
    record = transitions.ask(transitions.ask(EMPTY, ticket(B), After(("A",)), None), ticket(A), NoRule(), None)
    assert transitions.reason_to_wait(record, Nonce("A.0"), live(A, B), 0) is None
    assert transitions.reason_to_wait(record, Nonce("B.0"), live(A, B), 0) == Waits("waits for A: no turn yet")
    both = transitions.ask(transitions.ask(EMPTY, ticket(B), NoRule(), None), ticket(A), NoRule(), None)
    assert transitions.reason_to_wait(both, Nonce("A.0"), live(A, B), 0) == Waits("B asked earlier")
    assert transitions.reason_to_wait(both, Nonce("A.0"), live(A), 0) is None
    assert transitions.reason_to_wait(both, Nonce("C.0"), live(A), 0) == Waits("has no live ticket")


def test_a_grant_counts_up_and_takes_the_ticket() -> None:
    """By one."""
    record = transitions.grant(transitions.ask(EMPTY, ticket(A), NoRule(), None), holder(A))
    assert (record.epoch, record.tickets, record.is_held_by(Nonce("A.0"))) == (8, (), True)
    waits = transitions.reason_to_wait(record, Nonce("B.0"), live(A, B), 0)
    assert waits is not None
    assert "A has the turn (epoch 8" in waits.reason


def test_a_clean_end_leaves_no_doubt_and_an_unclean_one_does() -> None:
    """Doubt names the tables; a second lost turn adds to it."""
    held = transitions.grant(EMPTY, holder(A))
    done = transitions.complete(held, now_ms=4)
    assert (done.holder, done.in_doubt, done.job(A).done, done.job(A).turns) == (None, (), 8, 1)
    lost = transitions.close(held)
    assert (lost.holder, lost.job(A).lost, lost.doubts(T), lost.doubts(U)) == (None, (8, 5), {X}, frozenset())
    again = transitions.close(transitions.add_table(transitions.grant(lost, holder(A, 1, tables=(U,))), U))
    assert again.in_doubt == (InDoubt(token_id=X, epoch=Epoch(9), tables=(T, U)),)
    assert transitions.complete(transitions.grant(lost, holder(A)), now_ms=0).job(A).lost is None


def test_an_unclean_end_of_a_turn_without_tables_leaves_no_doubt() -> None:
    """A table is said before it is first written, so there is nothing that it may still commit to; nor would a fence end it."""
    held = transitions.grant(EMPTY, holder(A, tables=()))
    of_before = InDoubt(token_id=X, epoch=Epoch(3), tables=())
    for record in (held, replace(held, in_doubt=(of_before,))):
        lost = transitions.close(record)
        assert (lost.job(A).lost, lost.in_doubt) == ((8, 5), ())
    elsewhere = InDoubt(token_id=X, epoch=Epoch(3), tables=(T,))
    assert transitions.close(replace(held, in_doubt=(elsewhere,))).doubts(T) == {X}


def test_done_late_counts_under_the_old_epoch() -> None:
    """Only for a lost turn."""
    lost = transitions.close(transitions.grant(EMPTY, holder(A)))
    late = transitions.done_late(lost, A, now_ms=4)
    assert (late.job(A).done, late.job(A).lost, late.doubts(T)) == (8, None, {X})
    with pytest.raises(ValueError, match="no lost turn"):
        transitions.done_late(late, A, now_ms=4)


def test_a_fence_ends_doubt_on_its_table_only() -> None:
    """And a whole one lets the table be trusted."""
    lost = transitions.close(transitions.grant(EMPTY, holder(A, tables=(T, U))))
    held = transitions.grant(lost, holder(B))
    fenced = transitions.confirm_fence(held, T, frozenset({X}), is_whole=False)
    assert (fenced.doubts(T), fenced.doubts(U), fenced.tables) == (frozenset(), {X}, {})
    whole = transitions.confirm_fence(fenced, U, frozenset({X}), is_whole=True)
    assert (whole.in_doubt, whole.tables) == ((), {U: 9})


@pytest.mark.parametrize(
    "move", [transitions.close, lambda r: transitions.complete(r, now_ms=0), lambda r: transitions.add_table(r, T)]
)
def test_a_holders_move_without_a_holder_is_a_fault(move: Any) -> None:
    """It would change another job's turn."""
    with pytest.raises(ValueError, match="nobody holds"):
        move(EMPTY)


def test_giving_up_takes_only_the_own_ticket() -> None:
    """Others keep their place."""
    record = transitions.ask(transitions.ask(EMPTY, ticket(A), NoRule(), None), ticket(B), NoRule(), None)
    assert [t.job for t in transitions.give_up(record, Nonce("A.0")).tickets] == ["B"]


def claim(job: JobName, asked_at_ms: int, priority: int = 0, aging_ms: int | None = 1_000) -> Ticket:
    return replace(ticket(job), asked_at_ms=asked_at_ms, priority=priority, aging_ms=aging_ms)


def asked(*claims: Ticket, completed_at_ms: int = 0) -> LockRecord:
    record = replace(EMPTY, jobs={C: JobState(completed_at_ms=completed_at_ms)})
    for one in claims:
        record = transitions.ask(record, one, NoRule(), None)
    return record


def first_of(record: LockRecord, *jobs: JobName) -> list[JobName]:
    return [job for job in jobs if transitions.reason_to_wait(record, Nonce(f"{job}.0"), live(*jobs), 0) is None]


def test_the_highest_priority_goes_first_until_waiting_has_compensated_for_it() -> None:
    """One more for each `aging` waited; equals in the order of asking; the reason says who goes first, and why."""
    fresh = asked(claim(A, 0), claim(B, 500, priority=2), completed_at_ms=1_000)
    assert first_of(fresh, A, B) == [B]
    assert transitions.reason_to_wait(fresh, Nonce("A.0"), live(A, B), 0) == Waits("B goes first: rank 2.5 over 1.0")
    assert first_of(asked(claim(A, 0), claim(B, 2_500, priority=2), completed_at_ms=3_000), A, B) == [A]
    assert first_of(asked(claim(A, 0), claim(B, 0), completed_at_ms=3_000), A, B) == [A]
    assert first_of(asked(claim(A, 0, aging_ms=None), claim(B, 9_000, priority=1), completed_at_ms=10_000), A, B) == [B]


@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 5), st.none() | st.integers(1, 9_000)), min_size=1),
    st.integers(0, 40_000),
    st.integers(-9_000_000, 9_000_000),
)
def test_whatever_the_clocks_say_there_is_exactly_one_that_goes(
    said: list[tuple[int, int, int | None]], completed_at_ms: int, now_ms: int
) -> None:
    """Two jobs that each let the other go first would wait for ever: the decision uses the record, not a job's own clock."""
    jobs = [JobName(f"J{n}") for n in range(len(said))]
    record = asked(*(claim(job, *one) for job, one in zip(jobs, said, strict=True)), completed_at_ms=completed_at_ms)
    let_go = [
        job
        for n, job in enumerate(jobs)
        if transitions.reason_to_wait(record, Nonce(f"{job}.0"), live(*jobs), now_ms + n * 1_000_000) is None
    ]
    assert len(let_go) == 1


@given(st.lists(st.integers(0, 20_000), min_size=2), st.integers(0, 40_000))
def test_equals_go_in_the_order_of_asking_whatever_their_clocks_say(times: list[int], completed_at_ms: int) -> None:
    """First come, first served, as before there were priorities."""
    jobs = [JobName(f"J{n}") for n in range(len(times))]
    record = asked(*(claim(job, time) for job, time in zip(jobs, times, strict=True)), completed_at_ms=completed_at_ms)
    assert first_of(record, *jobs) == [jobs[0]]


def test_a_paused_job_has_no_ticket_and_is_absent() -> None:
    """Its successors go, though it is alive; not over a turn that it has, or that it lost."""
    pause = Pause(since_ms=1, by="me@h", reason="repair")
    record = transitions.ask(transitions.ask(EMPTY, ticket(A), NoRule(), None), ticket(B), After(("A",)), None)
    assert transitions.reason_to_wait(record, Nonce("B.0"), live(A, B), 0) == Waits("waits for A: no turn yet")
    paused = transitions.pause(record, A, pause)
    assert [t.job for t in paused.tickets] == ["B"]
    assert transitions.reason_to_wait(paused, Nonce("B.0"), live(A, B), 0) is None
    held = transitions.pause(transitions.grant(record, holder(A)), A, pause)
    lost = transitions.reason_to_wait(transitions.close(held), Nonce("B.0"), live(A, B), 0)
    assert lost == Waits("waits for A: no turn yet; it is paused, and its last turn was not finished")
    assert transitions.resume(paused, A).paused == {}
    never_seen = transitions.pause(transitions.ask(EMPTY, ticket(B), After(("A",)), None), A, pause)
    assert transitions.reason_to_wait(never_seen, Nonce("B.0"), live(B), 0) is None
