"""Rows of the ledger, read into turns."""

from __future__ import annotations

import pytest

from headgate.errors import Corrupt, InvalidRequest
from headgate.events import TurnEnded
from headgate.report import Outcome, TurnRow
from headgate.sinks.ledger import to_line
from tests.report.sample import BEGIN_MS, JOBS, ledger_line, sample

TURN = sample(1).turns[0]


def test_a_line_of_the_ledger_gives_the_turn_that_was_written() -> None:
    """Every turn comes back as it was, whatever its outcome and whatever is missing in it."""
    turns = sample(5, turns=300, unusual_share=0.5).turns
    assert {turn.outcome for turn in turns} == set(Outcome)
    assert [TurnRow.from_ledger(ledger_line(turn)) for turn in turns] == list(turns)


def test_a_row_that_the_ledger_wrote_gives_the_turn_that_ended() -> None:
    """Writer and reader of the ledger's lines agree, field by field."""
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
        outcome="swept",
        reason="why",
    )
    turn = TurnRow.from_event(event)
    assert turn == TurnRow.from_ledger(to_line(event))
    assert {name: getattr(turn, name) for name in event.__slots__} == {
        name: getattr(event, name) for name in event.__slots__
    }


def test_a_key_of_a_later_writer_is_passed_over() -> None:
    """Within one format a row may gain keys without harm to readers."""
    assert TurnRow.from_ledger(ledger_line(TURN, shoe_size=44)) == TURN


def test_a_newer_format_is_refused_rather_than_misread() -> None:
    """What a newer version wrote may mean something else."""
    with pytest.raises(InvalidRequest, match="newer version"):
        TurnRow.from_ledger(ledger_line(TURN, format=2))


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"format": 1, "lock": "half a li',
        "[]",
        ledger_line(TURN, lock=...),
        ledger_line(TURN, outcome="went home"),
        ledger_line(TURN, outcome=None),
        ledger_line(TURN, asked_at_ms="noon"),
        ledger_line(TURN, asked_at_ms=True),
        ledger_line(TURN, epoch=1.5),
        ledger_line(TURN, batches=[1]),
        ledger_line(TURN, batches=5),
        ledger_line(TURN, versions=[1, 2]),
        ledger_line(TURN, versions={"engagement": 3}),
        ledger_line(TURN, versions={"engagement": ["3"]}),
    ],
)
def test_a_line_that_breaks_the_format_is_named_and_not_guessed_at(line: str) -> None:
    """Each kind of damage raises the error for damaged files, never one of Python's own."""
    with pytest.raises(Corrupt, match="line of the ledger"):
        TurnRow.from_ledger(line)


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
