"""Jobs of this version together with jobs of the version before, and of a later one, on one lock."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.fakes import CountingIds, FakeClock, FakeTableLog, Recorder
from lakegate.ids import Epoch, JobName, Nonce, SessionId, TableLocation
from lakegate.turns.coordinator import Coordinator
from lakegate.turns.effect_runner import Process, RunnerPorts
from lakegate.turns.protocol import transitions
from lakegate.turns.protocol.fencing import query_token
from lakegate.turns.protocol.lock_record import JobState, LockRecord, Pause, Ticket, record_from_json
from lakegate.turns.protocol.ordering import NoRule
from lakegate.turns.protocol.protocol import Order
from lakegate.turns.protocol.transitions import Sessions
from lakegate.turns.stores.sqlite import SqliteTurnStore

BEFORE = {
    "top": {"format", "lock", "epoch", "holder", "tickets", "jobs", "in_doubt", "tables"},
    "tickets": {"job", "session", "nonce", "asked_at_ms"},
    "jobs": {"done", "lost", "turns", "completed_at_ms", "idle_since_ms", "idle_at", "rule"},
}
"""The keys that the version before knew. It kept others at the top, and dropped them elsewhere."""


def rewritten_before(text: str) -> str:
    """The record as a move of the version before would have left it."""
    data = json.loads(text)
    data["tickets"] = [{k: v for k, v in one.items() if k in BEFORE["tickets"]} for one in data["tickets"]]
    data["jobs"] = {job: {k: v for k, v in one.items() if k in BEFORE["jobs"]} for job, one in data["jobs"].items()}
    return json.dumps(data)


def lets_go_before(record: LockRecord, nonce: Nonce) -> bool:
    """Returns whether the version before would have granted the turn to this ticket: first come, first served."""
    return record.holder is None and record.tickets[0].nonce == nonce


def add(value: dict[str, Any], path: str, extra: object) -> None:
    for part in path.split(".")[:-1]:
        value = value[int(part)] if isinstance(value, list) else value[part]
    value[path.split(".")[-1]] = extra


LATER = ("later", "holder.later", "tickets.0.later", "jobs.Other.later", "jobs.Mine.later")


def coordinator(store: SqliteTurnStore, job: str) -> Coordinator:
    ports = RunnerPorts(store=store, log=FakeTableLog(), clock=FakeClock(), randomness=CountingIds(), events=Recorder())
    process = Process(host="h", boot_id="b", pid=1, pid_start=1)
    order = Order(rule=NoRule(), absent_after_ms=None, priority=2)
    return Coordinator(ports, lock="L", job=job, order=order, process=process, lock_timeout_s=0)


def put(store: SqliteTurnStore, change: Any) -> None:
    """Another version writes the record."""
    stored = store.read("L")
    assert stored.record is not None
    data = json.loads(stored.record.to_json())
    change(data)
    with store._transaction("IMMEDIATE") as db:
        db.execute("UPDATE locks SET record = ?, version = version + 1 WHERE name = 'L'", (json.dumps(data),))


def raw(store: SqliteTurnStore) -> dict[str, Any]:
    with store._transaction() as db:
        return dict(json.loads(db.execute("SELECT record FROM locks").fetchone()[0]))


def test_keys_of_a_version_to_come_survive_a_turn_of_ours(tmp_path: Path) -> None:
    """At the top, in the holder, in a ticket, in a job's state: asked, granted, completed around them."""
    store = SqliteTurnStore(tmp_path / "turns.db")
    mine = coordinator(store, "Mine")
    mine.take(token_id=query_token("q"), query_id="q", batch=0, tables=()).complete()

    def later(data: dict[str, Any]) -> None:
        data["jobs"]["Other"] = {**data["jobs"]["Mine"]}
        data["tickets"] = [{"job": "Other", "session": "gone", "nonce": "x", "asked_at_ms": 1}]
        for path in LATER:
            if not path.startswith("holder"):
                add(data, path, [7])

    put(store, later)
    turn = mine.take(token_id=query_token("q"), query_id="q", batch=1, tables=())
    put(store, lambda data: add(data, "holder.later", [7]))
    turn.enter(TableLocation("/t"))
    held = raw(store)
    turn.complete()
    after = raw(store)
    assert (held["holder"]["later"], held["holder"]["tables"]) == ([7], ["/t"])
    assert (after["later"], after["tickets"][0]["later"]) == ([7], [7])
    assert (after["jobs"]["Other"]["later"], after["jobs"]["Mine"]["later"], after["jobs"]["Mine"]["turns"]) == (
        [7],
        [7],
        2,
    )
    mine.close()
    store.close()


def test_pauses_and_priorities_outlive_a_move_of_the_version_before() -> None:
    """It keeps at the top what it does not know; of a ticket that is gone nothing is left after a move of ours."""
    waits = Ticket(
        job=JobName("A"), session=SessionId("A"), nonce=Nonce("a"), asked_at_ms=5, priority=3, aging_ms=60_000
    )
    pause = Pause(since_ms=1, by="me@h", reason="repair")
    record = transitions.pause(
        transitions.ask(LockRecord(lock="L", epoch=Epoch(1)), waits, NoRule(), None), JobName("B"), pause
    )
    again = record_from_json(rewritten_before(record.to_json()))
    assert (again.tickets, again.paused) == ((waits,), {JobName("B"): pause})
    data = json.loads(transitions.give_up(again, Nonce("a")).to_json())
    assert "priorities" not in data


def test_a_record_of_the_version_before_is_read_and_written_without_new_keys() -> None:
    """A lock on which nobody is paused, and nobody with a priority waits, has the keys that it had."""
    record = transitions.ask(
        LockRecord(lock="L", epoch=Epoch(1)),
        Ticket(job=JobName("A"), session=SessionId("A"), nonce=Nonce("a"), asked_at_ms=5),
        NoRule(),
        None,
    )
    assert set(json.loads(record.to_json())) == BEFORE["top"]
    assert record_from_json(rewritten_before(record.to_json())) == record


@dataclass(frozen=True)
class Asker:
    """A job that waits; of the version before, it says nothing about priority."""

    is_before: bool
    asked_at_ms: int
    priority: int
    aging_ms: int | None


ASKERS = st.builds(Asker, st.booleans(), st.integers(0, 9), st.integers(0, 3), st.none() | st.integers(1, 5))


def stands(askers: list[Asker]) -> LockRecord:
    record = LockRecord(lock="L", epoch=Epoch(1))
    for n, asker in enumerate(askers):
        ticket = Ticket(
            job=JobName(f"J{n}"), session=SessionId(f"J{n}"), nonce=Nonce(f"J{n}"), asked_at_ms=asker.asked_at_ms
        )
        if not asker.is_before:
            ticket = replace(ticket, priority=asker.priority, aging_ms=asker.aging_ms)
        record = transitions.ask(record, ticket, NoRule(), None)
        if asker.is_before:
            record = record_from_json(rewritten_before(record.to_json()))
    return record


@given(st.lists(ASKERS, min_size=1, max_size=5))
def test_with_two_versions_on_a_lock_somebody_always_goes(askers: list[Asker]) -> None:
    """Never does each version wait for a job of the other that waits, too."""
    record = stands(askers)
    names = frozenset(JobName(f"J{n}") for n in range(len(askers)))
    live = Sessions(ids=frozenset(SessionId(name) for name in names), jobs=names)
    goes = [
        lets_go_before(record, Nonce(f"J{n}"))
        if asker.is_before
        else transitions.reason_to_wait(record, Nonce(f"J{n}"), live, 0) is None
        for n, asker in enumerate(askers)
    ]
    assert any(goes)


def test_aging_of_tickets_that_say_nothing_would_stop_a_lock() -> None:
    """Why they do not age: the version before waits for a ticket that, by age, would let it go first."""
    slow, before = Asker(False, 0, 0, 5), Asker(True, 0, 0, None)
    record = replace(stands([slow, before]), jobs={JobName("C"): JobState(completed_at_ms=9)})
    aged = replace(record, tickets=(record.tickets[0], replace(record.tickets[1], aging_ms=1)))
    live = Sessions(ids=frozenset({SessionId("J0"), SessionId("J1")}), jobs=frozenset())
    assert transitions.reason_to_wait(record, Nonce("J0"), live, 0) is None
    assert transitions.reason_to_wait(aged, Nonce("J0"), live, 0) is not None
    assert not lets_go_before(aged, Nonce("J1"))
