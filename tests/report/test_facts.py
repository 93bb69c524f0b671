"""Summaries of turns and commits, and their wording."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegate.report import facts, words
from lakegate.report.data import Outcome, ReportData, TurnRow
from tests.report.sample import sample

OVERLAPPED = "; 1 pair of them overlapped."


def turn(
    job: str,
    epoch: int,
    asked: int,
    granted: int | None,
    released: int | None,
    outcome: Outcome = Outcome.COMPLETED,
) -> TurnRow:
    """A turn on the lock L."""
    return TurnRow(
        lock="L",
        job=job,
        epoch=epoch,
        asked_at_ms=asked,
        granted_at_ms=granted,
        released_at_ms=released,
        outcome=outcome,
    )


def of(*turns: TurnRow) -> ReportData:
    """A report of these turns."""
    return ReportData(pipeline="p", made_at_ms=0, machine="m", turns=turns)


def test_turns_that_follow_one_another_do_not_overlap_even_within_one_millisecond() -> None:
    """The next turn may be granted in the millisecond of the release."""
    held = facts.holds([turn("A", 1, 0, 0, 10), turn("B", 2, 0, 10, 20)])
    assert facts.overlapping(held) == []


def test_each_pair_of_turns_that_held_the_lock_at_once_is_found() -> None:
    """One long turn that spans two others makes two pairs."""
    held = facts.holds([turn("A", 1, 0, 0, 100), turn("B", 2, 0, 10, 20), turn("C", 3, 0, 30, 40)])
    assert [(left.turn.job, right.turn.job) for left, right in facts.overlapping(held)] == [("A", "B"), ("A", "C")]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=12))
def test_overlaps_are_those_of_comparing_every_turn_with_every_other(spans: list[tuple[int, int]]) -> None:
    """The sweep finds what the slow way finds."""
    turns = [turn("A", place, 0, begin, begin + length) for place, (begin, length) in enumerate(spans)]
    slow = sum(a[0] < b[0] + b[1] and b[0] < a[0] + a[1] for place, a in enumerate(spans) for b in spans[place + 1 :])
    assert len(facts.overlapping(facts.holds(turns))) == slow


@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.FENCED])
def test_a_turn_that_others_ended_is_drawn_up_to_the_next_grant_and_counts_as_no_overlap(outcome: Outcome) -> None:
    """Its holder notes the end late, when another already writes; the table refused what it wrote after that."""
    held = facts.holds([turn("A", 1, 0, 0, 50, outcome), turn("B", 2, 0, 20, 40)])
    assert (held[0].until_ms, held[0].is_cut_off) == (20, True)
    assert facts.overlapping(held) == []
    assert facts.hold_ms(held[0].turn) is None


def test_a_turn_granted_during_another_overlaps_it_even_if_others_ended_it() -> None:
    """Only its end is uncertain; that it began too early is not."""
    held = facts.holds([turn("A", 1, 0, 0, 50), turn("B", 2, 0, 20, 60, Outcome.LOST)])
    assert len(facts.overlapping(held)) == 1


@pytest.mark.parametrize(
    ("boots", "up", "said"),
    [
        (("x", "x"), ((100, 150), (120, 160)), OVERLAPPED),
        (("x", "x"), ((100, 150), (150, 190)), "; no two overlapped."),  # the time of day was set back in between
        (("x", "x"), ((150, 190), (100, 150)), "; no two overlapped."),
        (("x", "x"), ((100, 150), (None, None)), OVERLAPPED),
        (
            ("x", "y"),
            ((100, 150), (120, 160)),
            "; no two on one machine overlapped (of turns on two, their clocks prove nothing).",
        ),
        ((None, "y"), ((None, None), (120, 160)), OVERLAPPED),
    ],
)
def test_turns_are_compared_by_a_clock_that_both_had(
    boots: tuple[str | None, str], up: tuple[tuple[int | None, int | None], ...], said: str
) -> None:
    """What the notes of two machines say is said as such: handed over in 10 ms, each turn would overlap the next by them."""
    turns = [
        replace(noted, boot_id=boot, granted_up_ms=granted, released_up_ms=released)
        for noted, boot, (granted, released) in zip(
            [turn("A", 1, 0, 0, 50), turn("B", 2, 0, 20, 60)], boots, up, strict=True
        )
    ]
    assert len(facts.overlapping(facts.holds(turns))) == (said == OVERLAPPED)
    assert said in facts.headline(of(*turns))


def test_a_turn_without_a_noted_end_lasts_to_the_last_instant_known() -> None:
    """A killed process notes nothing."""
    held = facts.holds([turn("A", 1, 0, 5, None, Outcome.LOST), turn("B", 0, 90, None, 95, Outcome.GAVE_UP)])
    assert [(hold.from_ms, hold.until_ms, hold.is_cut_off) for hold in held] == [(5, 95, True)]


def test_a_job_waits_for_those_who_held_the_lock_meanwhile_in_their_order() -> None:
    """Neither the turn before the question, nor its own, nor a later one."""
    turns = [
        turn("A", 1, 0, 0, 10),
        turn("B", 2, 0, 10, 30),
        turn("C", 3, 0, 30, 40),
        turn("D", 4, 10, 40, 50),
        turn("E", 5, 12, 50, 60),
    ]
    held = facts.holds(turns)
    assert [(other.job, other.epoch) for other in facts.waited_for(turns[3], held)] == [("B", 2), ("C", 3)]
    assert facts.named(facts.waited_for(turns[4], held)) == "B 2, C 3, D 4"
    assert facts.named(turns) == "A 1, B 2, C 3, 2 more"
    assert facts.waited_for(turns[0], held) == []


def test_quantiles_are_durations_that_occurred() -> None:
    """Nearest rank: of 1 to 100, the 95th is the 95th percentile."""
    durations = list(range(1, 101))
    Random(1).shuffle(durations)
    spread = facts.spread([*durations, None])
    assert spread is not None
    assert (spread.lower_quarter, spread.median, spread.upper_quarter, spread.p95) == (25, 50, 75, 95)
    assert (spread.count, spread.shortest, spread.longest) == (100, 1, 100)
    assert facts.spread([None]) is None


def test_the_headline_says_how_many_turns_and_whether_they_overlapped() -> None:
    """The claim is computed: an overlap that is put in is said."""
    data = sample(3)
    assert facts.headline(data) == "3 jobs took 41 turns in 4 min 23 s; no two overlapped."
    first = data.turns[1]
    assert first.granted_at_ms is not None
    twin = replace(first, epoch=99, granted_at_ms=first.granted_at_ms + 1)
    assert "1 pair of them overlapped" in facts.headline(replace(data, turns=(*data.turns, twin)))


def test_locks_do_not_overlap_with_one_another() -> None:
    """Two locks are held at the same time by right."""
    one = turn("A", 1, 0, 0, 10)
    assert "no two overlapped" in facts.headline(of(one, replace(one, lock="M", job="B")))


def test_the_summary_counts_what_is_there() -> None:
    """Outcomes, waits, rows and foreign writers are all named."""
    data = sample(3)
    text = " ".join(facts.summary(data))
    assert text.startswith("20 November 2026, 14:00 to 14:04 UTC. 35 completed, 1 replayed, 2 gave up and 3 lost.")
    added = sum(commit.rows_added or 0 for commit in data.commits)
    assert f"{len(data.commits)} versions of 1 table added {added:,} rows" in text
    assert "4 versions came from writers outside Lakegate" in text


def test_an_empty_ledger_and_a_single_turn_have_sentences_of_their_own() -> None:
    """No division by nothing, no `1 turns`."""
    assert facts.headline(of()) == "No turn has been taken yet."
    assert facts.summary(of()) == ["No commit is known."]
    assert facts.headline(of(turn("A", 1, 0, 5, 30))) == "1 job took 1 turn in 30 ms."


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_949, "59.9 s"),
        (59_951, "1 min"),
        (232_000, "3 min 52 s"),
        (3_600_000, "1 h"),
        (7_500_000, "2 h 5 min"),
        (86_400_000 * 3 + 3_600_000 * 4, "3 d 4 h"),
        (86_400_000 + 60_000, "1 d"),
    ],
)
def test_spans_have_at_most_two_units(milliseconds: int | None, text: str) -> None:
    """As one would say them."""
    assert words.span(milliseconds) == text


def test_versions_in_a_row_are_joined() -> None:
    """A turn of a hundred batches has a hundred versions."""
    assert words.runs([3, 5, 6, 7, 9, 10]) == "3, 5–7, 9–10"
    assert words.runs([]) == "–"
