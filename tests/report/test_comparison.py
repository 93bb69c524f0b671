"""The comparison of runs: its numbers add up, and its picture shows what overlapped and which commit brought what."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lakegate.report.comparison import BADGE_PERCENT, lines, opening, overlapping, sentence, spread
from lakegate.report.data import Comparison, Ended, FaultKind, Write
from tests.report.sample import COMPARISON, TABLE

RIGHT, WRONG = COMPARISON.runs


def write(from_ms: int, until_ms: int) -> Write:
    return Write(job="A", batch="0", from_ms=from_ms, until_ms=until_ms, ended=Ended.WRITTEN)


def test_a_reader_can_add_the_lines_of_rows() -> None:
    """Expected, less what is missing, and what is too much, is what is in the table; all kinds together are what differs."""
    numbers = {line.label: [value.replace(",", "") for value in line.values] for line in lines(COMPARISON)}
    signs = {"rows expected": 1, "−": -1, "+": 1}
    for place in range(2):
        total = sum(
            sign * int(values[place])
            for label, values in numbers.items()
            for start, sign in signs.items()
            if label.startswith(start)
        )
        assert total == int(numbers["= rows in the table"][place])
        kinds = [values for label, values in numbers.items() if label[0] in "−+" or label.startswith("of them")]
        assert sum(int(values[place]) for values in kinds) == int(numbers["rows that differ in all"][place])
    assert numbers["the table is"] == ["right", "wrong"]
    assert numbers["conflicts, repeated"] == ["0", "14"]


def test_rows_of_no_input_have_a_line_only_where_there_are_some() -> None:
    """A line of zeros in every demo explains nothing."""
    label = f"+ {FaultKind.UNKNOWN.value}"
    assert label in [line.label for line in lines(COMPARISON)]
    assert label not in [line.label for line in lines(replace(COMPARISON, runs=(RIGHT, RIGHT)))]


def test_the_sentence_says_what_each_run_came_to() -> None:
    """Also of a run without turns that was right."""
    assert sentence(COMPARISON) == (
        "Two jobs on one table, one killed in the middle – with turns: the table is exactly the expected one; "
        "without, careful: 67 rows differ."
    )
    assert sentence(replace(COMPARISON, runs=(RIGHT, replace(WRONG, faults=())))).endswith(
        "without, careful: the table is exactly the expected one."
    )


@pytest.mark.parametrize(
    ("writes", "spans"),
    [
        ([], []),
        ([write(0, 5), write(5, 9)], []),
        ([write(0, 5), write(3, 9)], [(3, 5)]),
        ([write(0, 9), write(2, 3), write(2, 4), write(6, 7)], [(2, 4), (6, 7)]),
    ],
)
def test_two_write_at_once_from_the_second_beginning_to_the_last_but_one_end(
    writes: Sequence[Write], spans: Sequence[tuple[int, int]]
) -> None:
    """One that begins as another ends does not overlap it."""
    assert overlapping(writes) == spans


@pytest.mark.parametrize("percents", [[], [50.0], [1.0, 1.0, 2.0], [98.0, 99.0, 100.0], [0.0, 50.0, 50.0, 100.0]])
def test_badges_do_not_cover_one_another_and_stay_in_the_picture(percents: Sequence[float]) -> None:
    """In their order; one that has room stays where it is."""
    found = spread(percents)
    assert all(later - earlier >= BADGE_PERCENT - 1e-9 for earlier, later in itertools.pairwise(found))
    assert all(0 <= place <= 100 for place in found)
    assert len(percents) != 1 or found == list(percents)


def test_the_picture_marks_each_commit_that_brought_rows_that_differ() -> None:
    """A badge and an item for each commit, both with a link to it; faults that no commit shows are named, too."""
    page = opening(COMPARISON, colours={}, places={TABLE: 0, WRONG.table: 1})
    badges = re.findall(r'<a class="badge" [^>]*href="#([^"]*)">(\d)</a>', page)
    assert badges == [("commit-1-1", "1"), ("commit-1-2", "2")]
    assert "Ingestion at 3.0 s</a>: 15 rows doubled and 4 rows of erased people" in page
    assert "no commit of the log shows 37 rows missing" in page
    assert 'class="bar killed"' in page
    assert page.count('class="at-once"') == 1
    assert "conflict (ConcurrentAppendException), no commit" in page
    assert 'href="#commit-0-1"' in page


def test_both_runs_begin_at_the_left_and_share_one_scale() -> None:
    """The longest run fills the axis; the other is as much shorter as it was."""
    page = opening(COMPARISON, colours={}, places={})
    widths = [float(width) for width in re.findall(r'class="bar[^"]*" style="left:[\d.]+%;width:([\d.]+)%', page)]
    assert widths == pytest.approx([17.5, 77.5, 7.63, 5.0], abs=0.01)
    assert "href" not in page


def test_an_experiment_without_a_write_is_a_page() -> None:
    """Nothing was written: nothing is drawn, and the table stands."""
    empty = replace(COMPARISON, runs=tuple(replace(run, writes=(), faults=()) for run in COMPARISON.runs))
    assert "rows expected" in opening(empty, colours={}, places={})


def test_the_file_of_a_comparison_is_read_as_it_was_written() -> None:
    """Enumerations, tuples and all; any damage is one error."""
    assert Comparison.from_json(COMPARISON.to_json()) == COMPARISON
    for damaged in (
        '{"runs": [], "notes": "x"}',
        '{"notes": []}',
        "[]",
        COMPARISON.to_json().replace('"doubled"', '"odd"'),
    ):
        with pytest.raises(ValueError, match=r"."):
            Comparison.from_json(damaged)
