"""The end of a run until idle: jobs look, work, report idle and leave, in every order, with deaths in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pytest

from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation, Version
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.lock_record import Holder, LockRecord, Member, Ticket, record_from_json
from lakegate.turns.protocol.ordering import NoRule
from lakegate.turns.protocol.transitions import Sessions

TABLE = TableLocation("t")
RUN, BEFORE = "this run", "an earlier run"
A, B, C = JobName("A"), JobName("B"), JobName("C")
NOBODY = Sessions(ids=frozenset(), jobs=frozenset())

Phase = Literal["off", "looks", "waits", "works", "rests", "left"]


class One(NamedTuple):
    """A job: where it is, the rows in its source, and up to which version of the table it has tested what it keeps."""

    phase: Phase
    rows: int
    tested: int


class World(NamedTuple):
    record: str
    head: int
    jobs: tuple[One, ...]
    kills: int
    arrivals: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """The jobs that have rows at the start, and the jobs that test the rows of others."""

    rows: Mapping[JobName, int]
    tests: frozenset[JobName] = frozenset()
    kills: int = 0
    arrivals: int = 0
    """Rows that arrive for the first job at any time, also after it has reported idle."""


CASES = {
    "only the first has data": Case(rows={A: 1, B: 0}, tests=frozenset({B})),
    "both have data": Case(rows={A: 1, B: 1}, tests=frozenset({A, B})),
    "nobody has data": Case(rows={A: 0, B: 0}),
    "three, one has data": Case(rows={A: 0, B: 1, C: 0}, tests=frozenset({A, C})),
    "one is killed anywhere": Case(rows={A: 1, B: 0}, tests=frozenset({B}), kills=1),
    "late data": Case(rows={A: 0, B: 0}, tests=frozenset({B}), arrivals=1),
}


def holder(job: JobName) -> Holder:
    return Holder(
        nonce=Nonce(job),
        session=SessionId(job),
        job=job,
        run="r",
        host="h",
        boot_id="b",
        pid=1,
        pid_start=1,
        jvm_pid=None,
        jvm_start=None,
        token_ids=(),
        batch=0,
        tables=(),
        since_ms=0,
    )


def ticket(job: JobName) -> Ticket:
    return Ticket(job=job, session=SessionId(job), nonce=Nonce(job), asked_at_ms=0)


def idle(record: LockRecord, job: JobName, version: int, run: str | None = RUN) -> LockRecord:
    return transitions.go_idle(record, job, {TABLE: Version(version)}, NoRule(), None, now_ms=1, run=run)


def first(case: Case) -> World:
    """Every job was idle at version 4 when an earlier run ended."""
    record = LockRecord(lock="L", epoch=Epoch(4))
    for job in case.rows:
        record = transitions.leave(idle(record, job, 4, BEFORE), job, BEFORE)
    jobs = tuple(One("off", rows, 4) for rows in case.rows.values())
    return World(record.to_json(), 4, jobs, case.kills, case.arrivals)


def after(case: Case, world: World) -> Iterator[World]:
    record, names = record_from_json(world.record), list(case.rows)
    running = [name for name, one in zip(names, world.jobs, strict=True) if one.phase not in ("off", "left")]
    live = Sessions(ids=frozenset(SessionId(name) for name in running), jobs=frozenset(running))

    def moved(at: int, one: One, changed: LockRecord = record, **more: Any) -> World:
        return world._replace(record=changed.to_json(), jobs=(*world.jobs[:at], one, *world.jobs[at + 1 :]), **more)

    if world.arrivals and world.jobs[0].phase != "left":
        one = world.jobs[0]
        yield moved(0, one._replace(rows=one.rows + 1), arrivals=world.arrivals - 1)
    for at, (name, one) in enumerate(zip(names, world.jobs, strict=True)):
        if world.kills and one.phase not in ("off", "left"):
            yield moved(at, one._replace(phase="off"), kills=world.kills - 1)
        has_work = one.rows > 0 or (name in case.tests and one.tested < world.head)
        match one.phase:
            case "off":
                if record.holder is None or record.holder.job != name:
                    yield moved(at, one._replace(phase="looks"))
                else:
                    yield moved(at, one._replace(phase="looks"), transitions.close(record))
            case "looks" if has_work:
                yield moved(at, one._replace(phase="waits"), transitions.ask(record, ticket(name), NoRule(), None))
            case "looks":
                yield moved(at, one._replace(phase="rests"), idle(record, name, world.head))
            case "waits" if transitions.reason_to_wait(record, Nonce(name), live, 0) is None:
                yield moved(at, one._replace(phase="works"), transitions.grant(record, holder(name)))
            case "works":
                head = world.head + (1 if one.rows else 0)  # a test of what is kept finds nothing to change here
                yield moved(at, One("looks", 0, head), transitions.complete(record, now_ms=1), head=head)
            case "rests":
                heads = {job: {TABLE: Version(world.head)} for job in names}
                if transitions.is_settled(record, heads, live, run=RUN):
                    yield moved(at, one._replace(phase="left"), transitions.leave(record, name, RUN))
                else:
                    yield moved(at, one._replace(phase="looks"))
            case _:
                pass


def explored(case: Case) -> tuple[list[World], str]:
    """Every world reached; and what is wrong: one from which the run cannot end, or an end with work left. Empty if nothing."""
    worlds, before = [first(case)], {first(case): set[World]()}
    for world in worlds:
        for reached in after(case, world):
            if reached not in before:
                before[reached] = set()
                worlds.append(reached)
            before[reached].add(world)
    ends = [world for world in worlds if all(one.phase == "left" for one in world.jobs)]
    for world in ends:
        is_left_over = [
            one.rows or (name in case.tests and one.tested < world.head)
            for name, one in zip(case.rows, world.jobs, strict=True)
        ]
        if any(is_left_over) and not case.arrivals:
            return worlds, f"ended with work left: {world}"
    can_end, todo = set(ends), list(ends)
    while todo:
        for world in before[todo.pop()] - can_end:
            can_end.add(world)
            todo.append(world)
    stuck = [world for world in worlds if world not in can_end]
    return worlds, f"cannot end: {stuck[0]}" if stuck else ""


@pytest.mark.parametrize("name", CASES)
def test_every_run_ends_and_leaves_nothing_undone(name: str) -> None:
    """Whatever the order of starts, turns, deaths and ends; but for what arrives after everybody was idle."""
    worlds, wrong = explored(CASES[name])
    assert not wrong
    assert len(worlds) > 10


def test_if_notes_of_any_run_counted_a_job_would_leave_before_the_others_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above sees it: the notes of the earlier run name the head until the first turn."""
    real = transitions.is_settled
    monkeypatch.setattr(transitions, "is_settled", lambda record, heads, live, *, run: real(record, heads, live))
    _, wrong = explored(CASES["only the first has data"])
    assert wrong


def test_late_data_would_block_the_last_job_if_jobs_that_left_had_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above finds it: no process renews the note of a job that has left."""
    monkeypatch.setattr(transitions, "leave", lambda record, job, run: record)
    _, wrong = explored(CASES["late data"])
    assert "cannot end" in wrong


EMPTY = LockRecord(lock="L", epoch=Epoch(4))
AT = {A: {TABLE: Version(4)}}


def test_a_note_counts_in_the_run_in_which_it_was_said() -> None:
    """At the head, while the job has not asked again; in a run without a name any note does."""
    earlier, now = idle(EMPTY, A, 4, BEFORE), idle(EMPTY, A, 4)
    assert not transitions.is_settled(earlier, AT, NOBODY, run=RUN)
    assert not transitions.is_settled(idle(EMPTY, A, 4, None), AT, NOBODY, run=RUN)
    assert transitions.is_settled(now, AT, NOBODY, run=RUN)
    assert transitions.is_settled(earlier, AT, NOBODY)
    assert not transitions.is_settled(idle(EMPTY, A, 3), AT, NOBODY, run=RUN)
    given_up = transitions.give_up(transitions.ask(now, ticket(A), NoRule(), None), Nonce(A))
    assert not transitions.is_settled(given_up, AT, NOBODY, run=RUN)


def test_a_note_is_said_again_in_another_run() -> None:
    """At the same head, too; and stands as it is in the same run."""
    earlier = idle(EMPTY, A, 4, BEFORE)
    assert transitions.is_said(earlier, A, AT[A], BEFORE)
    assert not transitions.is_said(earlier, A, AT[A], RUN)
    assert not transitions.is_said(earlier, A, AT[A], None)
    again = idle(earlier, A, 4)
    assert (transitions.is_said(again, A, AT[A], RUN), again.job(A).idle_since_ms) == (
        True,
        earlier.job(A).idle_since_ms,
    )


def test_a_job_that_left_this_run_is_not_waited_for() -> None:
    """Wherever the head is; who left an earlier one is."""
    left = transitions.leave(idle(EMPTY, A, 3), A, RUN)
    assert transitions.is_settled(left, AT, NOBODY, run=RUN)
    assert not transitions.is_settled(transitions.leave(left, A, BEFORE), AT, NOBODY, run=RUN)


def test_what_the_dead_have_left_is_no_reason_to_go_on() -> None:
    """A ticket or a turn of another job counts while its session lives."""
    record = idle(EMPTY, A, 4)
    alive = Sessions(ids=frozenset({SessionId(B)}), jobs=frozenset({B}))
    for other in (transitions.ask(record, ticket(B), NoRule(), None), transitions.grant(record, holder(B))):
        assert not transitions.is_settled(other, AT, alive, run=RUN)
        assert transitions.is_settled(other, AT, NOBODY, run=RUN)


def test_the_run_of_a_note_outlives_a_version_that_does_not_know_it() -> None:
    """It stands at the top of the record; a record without it is read, and a note outside of a run writes none."""
    record = transitions.leave(idle(idle(EMPTY, A, 4), B, 4), B, RUN)
    assert record_from_json(record.to_json()).members == {A: Member(run=RUN), B: Member(run=RUN, has_left=True)}
    without = idle(idle(record, A, 4, None), B, 4, None)
    assert "members" not in without.to_json()
    assert record_from_json(without.to_json()) == replace(record, members={})
