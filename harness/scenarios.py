"""The named scenarios: small worlds that together contain every rule, fault and kind of job of the turn protocol.

`QUICK` names the scenarios of every test run; the others take minutes (`make simulate`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.jobs import Job
from harness.worlds import FAULTS, Scenario
from lakegate.ids import JobName, TableLocation
from lakegate.turns.protocol.ordering import ADHOC, After, OrderRule, Strict

T, U = TableLocation("t"), TableLocation("u")
A, B, C = (Job(name=JobName(name)) for name in "ABC")
ONE_STEP, TWO_STEPS = ((T, 0),), ((T, 0), (T, 1))
BOTH_TABLES = ((T, 0), (U, 0))


def _ruled(job: Job, rule: OrderRule, **changes: Any) -> Job:
    return replace(job, rule=rule, **changes)


AFTER = (A, _ruled(B, After(("A",))))
RING = (_ruled(A, Strict(("B",))), _ruled(B, Strict(("A",))))
BY_HAND = replace(A, name=JobName(ADHOC))
RING_OF_THREE = (_ruled(A, Strict(("C",))), _ruled(B, Strict(("A",))), _ruled(C, Strict(("B",))))
CHAIN = (A, _ruled(B, After(("A",))), _ruled(C, After(("B",))))
URGENT = tuple(replace(job, priority=int(job is A), aging_ms=2) for job in (A, B, C))
HIGH = (replace(A, priority=2, aging_ms=2), replace(B, aging_ms=2))
ABSENT = (A, _ruled(B, After(("A",)), absent_after_ms=-1))
STEPS = (replace(A, writes=TWO_STEPS), B)
TABLES = (replace(A, writes=BOTH_TABLES), replace(B, writes=BOTH_TABLES))
BATCHES = (replace(A, has_many_batches=True), B)


def _scenario(name: str, jobs: tuple[Job, ...] = (A, B), **settings: Any) -> Scenario:
    """Makes a scenario; a setting named like a fault is that fault's budget."""
    faults = {fault: settings.pop(fault) for fault in FAULTS if fault in settings}
    return Scenario(name=name, jobs=jobs, faults=faults, **settings)


SCENARIOS: tuple[Scenario, ...] = (
    # Two jobs, one table, one batch each: every fault alone, then in pairs.
    _scenario("plain"),
    _scenario("plain-fine", is_fine=True),
    _scenario("crash", crash=1),
    _scenario("crash-fine", crash=1, is_fine=True),
    _scenario("crash-twice", crash=2),
    _scenario("expire", expire=1),
    _scenario("expire-fine", (A,), expire=1, is_fine=True),
    _scenario("expire-crash", expire=1, crash=1),
    _scenario("lost", lost=1),
    _scenario("lost-twice", lost=2),
    _scenario("lost-expire", lost=1, expire=1),
    _scenario("raises", fail=1),
    _scenario("raises-crash", fail=1, crash=1),
    _scenario("raises-expire", fail=1, expire=1),
    _scenario("raises-lost", fail=1, lost=1),
    _scenario("give-up", giveup=1),
    _scenario("give-up-crash", giveup=1, crash=1),
    _scenario("give-up-lost", giveup=1, lost=1),
    _scenario("foreign-writer", foreign=1),
    _scenario("foreign-writer-expire", foreign=1, expire=1),
    _scenario("one-job-expire-twice", (A,), expire=2, crash=1),
    _scenario("one-job-all", (A,), crash=1, expire=1, lost=1, fail=1, giveup=1),
    # A batch in two steps; statements that match nothing.
    _scenario("steps-crash", STEPS, crash=1),
    _scenario("steps-expire", STEPS, expire=1),
    _scenario("steps-raises", STEPS, fail=1),
    _scenario("nothing-expire", (replace(A, matches_nothing=frozenset(ONE_STEP)), B), expire=1),
    _scenario("nothing-crash-expire", (replace(A, matches_nothing=frozenset(ONE_STEP)), B), crash=1, expire=1),
    _scenario(
        "nothing-second-step-expire",
        (replace(A, writes=TWO_STEPS, matches_nothing=frozenset({(T, 1)})), B),
        expire=1,
    ),
    # Two tables in a turn.
    _scenario("tables", TABLES),
    _scenario("tables-crash", TABLES, crash=1),
    _scenario("tables-expire", TABLES, expire=1),
    _scenario("tables-raises", TABLES, fail=1),
    _scenario("tables-one-each", (replace(A, writes=BOTH_TABLES), replace(B, writes=((U, 0),))), expire=1),
    _scenario("tables-other-order", (TABLES[0], replace(B, writes=((U, 0), (T, 0)))), crash=1),
    _scenario("table-not-in-the-grant", tuple(replace(job, tables_granted=(T,)) for job in TABLES), expire=1),
    _scenario("table-not-in-the-grant-crash", tuple(replace(job, tables_granted=()) for job in TABLES), crash=1),
    _scenario("new-tables", TABLES, start="new"),
    # Several batches, in several turns and in one.
    _scenario("rows-crash", rows=2, crash=1),
    _scenario("rows-expire", rows=2, expire=1),
    _scenario("batches-crash", BATCHES, rows=2, crash=1),
    _scenario("batches-expire", BATCHES, rows=2, expire=1),
    _scenario("batches-raises", BATCHES, rows=2, fail=1),
    _scenario(
        "batches-entered-each",
        tuple(replace(job, has_many_batches=True, enters_each_batch=True) for job in (A, B)),
        rows=2,
        crash=1,
    ),
    _scenario("any-rows", (A,), rows=2, takes_any_rows=True, crash=1, expire=1),
    # Three jobs.
    _scenario("three", (A, B, C)),
    _scenario("three-crash", (A, B, C), crash=1),
    _scenario("three-give-up", (A, B, C), giveup=1),
    # Order.
    _scenario("after", AFTER, arrivals=1, bounds_waiting=True),
    _scenario("after-crash", AFTER, arrivals=1, crash=1),
    _scenario("after-expire", AFTER, arrivals=1, expire=1),
    _scenario("after-expire-crash", AFTER, expire=1, crash=1),
    _scenario("after-idle", AFTER, is_first_dry=True, arrivals=1, crash=1),
    _scenario("after-idle-zombie", AFTER, is_first_dry=True, arrivals=1, crash=1, expire=1),
    _scenario("after-batches", (replace(AFTER[0], has_many_batches=True), AFTER[1]), rows=2, crash=1),
    _scenario("after-steps", (replace(A, writes=TWO_STEPS), AFTER[1], C), crash=1),
    _scenario("after-lost", AFTER, lost=1),
    _scenario("after-give-up", AFTER, giveup=1, arrivals=1),
    _scenario("after-chain", CHAIN, bounds_waiting=True),
    _scenario("after-chain-crash", CHAIN, crash=1),
    _scenario("after-any", (A, B, _ruled(C, After(("A", "B"), "any"))), crash=1),
    _scenario("after-all", (A, B, _ruled(C, After(("A", "B"), "all"))), bounds_waiting=True),
    _scenario("bound", (A, B, C), rows=2, bounds_waiting=True),
    _scenario("bound-after", AFTER, rows=3, bounds_waiting=True),
    # By priority, with a clock that counts turns: A has one more than the others; two turns of waiting compensate for it.
    _scenario("priority", URGENT[:2], rows=4, has_clock=True, bounds_waiting=True),
    _scenario("priority-three", URGENT, rows=2, has_clock=True, bounds_waiting=True),
    _scenario("priority-high", HIGH, rows=5, has_clock=True, bounds_waiting=True),
    _scenario("priority-crash", URGENT[:2], rows=2, has_clock=True, crash=1),
    _scenario("priority-give-up", URGENT[:2], rows=2, has_clock=True, giveup=1, bounds_waiting=True),
    _scenario("priority-lost", URGENT[:2], rows=2, has_clock=True, lost=1),
    _scenario("priority-after", (URGENT[0], _ruled(URGENT[1], After(("A",)))), rows=2, has_clock=True, crash=1),
    # An operator pauses the first job, and breaks the lock.
    _scenario("pause", pause=1),
    _scenario("pause-after", AFTER, rows=2, pause=1),
    _scenario("pause-after-crash", AFTER, pause=1, crash=1),
    _scenario("pause-after-lost", AFTER, pause=1, lost=1),
    _scenario("pause-after-give-up", AFTER, pause=1, giveup=1),
    _scenario("pause-after-chain", CHAIN, pause=1),
    _scenario("broken", broken=1),
    _scenario("broken-one-job", (A,), broken=2),
    _scenario("broken-crash", crash=1, broken=1),
    _scenario("broken-lost", lost=1, broken=1),
    _scenario("broken-steps", STEPS, broken=1),
    _scenario("broken-tables", TABLES, broken=1),
    _scenario("broken-batches", BATCHES, rows=2, broken=1),
    _scenario("broken-after", AFTER, arrivals=1, broken=1),
    _scenario("broken-nothing", (replace(A, matches_nothing=frozenset(ONE_STEP)), B), broken=1),
    _scenario("broken-missing-table", missing_tables=frozenset({T}), broken=1),
    # An older copy of the record is restored, while jobs have turns, wait, or sleep.
    _scenario("restored-one-job", (A,), rows=2, restored=1),
    _scenario("restored", restored=1),
    _scenario("restored-crash", restored=1, crash=1),
    _scenario("restored-expire", restored=1, expire=1),
    _scenario("restored-raises", restored=1, fail=1),
    _scenario("restored-lost", restored=1, lost=1),
    _scenario("restored-give-up", restored=1, giveup=1),
    _scenario("restored-rows", rows=2, restored=1),
    _scenario("restored-after", AFTER, arrivals=1, restored=1),
    _scenario("restored-after-crash", AFTER, restored=1, crash=1),
    _scenario("restored-steps", STEPS, restored=1, crash=1),
    _scenario("restored-tables", TABLES, restored=1, crash=1),
    _scenario("restored-table-not-in-the-grant", tuple(replace(job, tables_granted=()) for job in TABLES), restored=1),
    _scenario("restored-batches", BATCHES, rows=2, restored=1),
    _scenario("restored-nothing", (replace(A, matches_nothing=frozenset(ONE_STEP)), B), restored=1, expire=1),
    _scenario("restored-pause", pause=1, restored=1),
    _scenario("restored-three", (A, B, C), restored=1),
    _scenario("strict-ring", RING, rows=2),
    _scenario("strict-ring-crash", RING, rows=2, crash=1),
    _scenario("strict-ring-expire", RING, rows=2, expire=1, strict_may_starve=True),
    _scenario("strict-ring-three", RING_OF_THREE, rows=2),
    # An operator drops a request in between: that turn belongs to no job of the ring, and the ring continues where it was.
    _scenario("strict-ring-by-hand", (*RING, BY_HAND), rows=2),
    _scenario("strict-ring-by-hand-crash", (*RING, BY_HAND), crash=1),
    # A limit of `strict`, not of the protocol: with an empty history any job may begin, and a lost first turn is no history
    # yet. So the ring may turn the wrong way and wait for the next data.
    _scenario("strict-ring-first-lost", RING_OF_THREE, crash=1, strict_may_starve=True),
    _scenario("absent", ABSENT, crash=1),
    _scenario("absent-twice", ABSENT, crash=2),
    _scenario("absent-raises", ABSENT, fail=1, crash=1),
    # The coordinator's data were lost, or never existed.
    _scenario("new", start="new"),
    _scenario("new-crash", start="new", crash=1),
    _scenario("new-expire", start="new", expire=1),
    _scenario("wipe", wipe=1),
    _scenario("wipe-new", (A,), wipe=1, start="new", expire=1),
    _scenario("wipe-after", AFTER, wipe=1),
    _scenario("wipe-one-job", (A,), wipe=1, crash=1, expire=1),
    _scenario("wipe-one-job-lost", (replace(A, writes=TWO_STEPS),), wipe=1, lost=1, expire=1),
    _scenario("wipe-tables", (TABLES[0],), wipe=1, start="new"),
    # The checkpoint was lost, or reset to an older state.
    _scenario("checkpoint-deleted", ckdel=1, crash=1),
    _scenario("checkpoint-deleted-expire", (A,), ckdel=1, expire=1, rows=2),
    _scenario("checkpoint-restored", rewind=1, takes_any_rows=True, arrivals=1),
    _scenario("checkpoint-restored-steps", STEPS, rewind=1, crash=1),
    # The first write creates the table.
    _scenario("missing-table", missing_tables=frozenset({T})),
    _scenario("missing-table-crash", missing_tables=frozenset({T}), crash=1),
    _scenario("missing-table-expire", missing_tables=frozenset({T}), expire=1),
    # Further combinations.
    _scenario("zombies-go-on", (A,), expire=1, fail=1, zombies_go_on=True),
    _scenario("zombies-go-on-two", expire=1, zombies_go_on=True),
)

QUICK = (
    "plain",
    "plain-fine",
    "crash",
    "crash-twice",
    "expire",
    "lost-twice",
    "raises",
    "raises-crash",
    "give-up-lost",
    "foreign-writer",
    "steps-crash",
    "nothing-expire",
    "tables-crash",
    "table-not-in-the-grant-crash",
    "batches-crash",
    "any-rows",
    "three",
    "after-crash",
    "after-idle",
    "after-steps",
    "after-any",
    "bound-after",
    "priority",
    "priority-high",
    "priority-give-up",
    "pause-after-crash",
    "pause-after-chain",
    "broken",
    "broken-batches",
    "broken-missing-table",
    "restored",
    "restored-one-job",
    "strict-ring-crash",
    "strict-ring-by-hand",
    "absent",
    "new",
    "missing-table-crash",
)
"""Scenarios for every test run: together under a minute."""
