"""Rows of the ledger, read into turns."""

from __future__ import annotations

from lakegate.report.data import Outcome, TurnRow
from lakegate.telemetry.events import TurnEnded
from tests.report.sample import BEGIN_MS, JOBS, sample

TURN = sample(1).turns[0]


def test_a_turn_that_ended_is_shown_as_it_was() -> None:
    """Field by field; by the clock that people read."""
    event = TurnEnded(
        lock="L",
        job="A",
        epoch=3,
        query_id="q",
        run="r",
        batches=(4, 6),
        predecessor="B",
        asked_at_ms=1,
        granted_at_ms=2,
        first_write_at_ms=3,
        commit_log_at_ms=4,
        released_at_ms=5,
        versions={"engagement": (7, 8)},
        unmet={"positive": 2},
        outcome="swept",
        reason="why",
    )
    turn = TurnRow.from_event(event)
    shown = set(event.__slots__) - {"boot_id", "granted_up_ms", "released_up_ms"}
    assert {name: getattr(turn, name) for name in shown} == {name: getattr(event, name) for name in shown}


def test_a_turn_that_gave_up_waited_until_it_gave_up_and_held_nothing() -> None:
    """Its release is the end of its wait."""
    turn = TurnRow(lock="L", job="TTL", asked_at_ms=100, released_at_ms=350, outcome=Outcome.GAVE_UP)
    assert (turn.waited_ms, turn.held_ms) == (250, None)


def test_a_clock_that_was_set_back_gives_no_negative_time() -> None:
    """Wall clocks are set back; a chart of negative waits would be nonsense."""
    turn = TurnRow(lock="L", job="TTL", asked_at_ms=100, granted_at_ms=90, released_at_ms=80, outcome=Outcome.COMPLETED)
    assert (turn.waited_ms, turn.held_ms) == (0, 0)


def test_the_sample_is_the_same_for_a_seed_and_differs_between_seeds() -> None:
    """Tests that fail can be run again on the same history."""
    assert sample(7) == sample(7)
    assert sample(7) != sample(8)
    assert {turn.job for turn in sample(7).turns} == set(JOBS)
    assert min(turn.asked_at_ms for turn in sample(7).turns) >= BEGIN_MS
