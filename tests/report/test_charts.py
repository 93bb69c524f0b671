"""The options of ECharts that are made from rows."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lakegate.report import charts, facts
from lakegate.report.data import CommitRow, Outcome, TurnRow
from tests.report.sample import JOBS, LOCK, TABLE, sample


def series(chart: charts.Chart, name: str) -> list[list[Any]]:
    """The items of a series."""
    found = [each for each in cast(list[dict[str, Any]], chart.option["series"]) if each["id"] == name]
    return cast(list[list[Any]], found[0]["data"])


def test_every_turn_is_an_item_of_its_jobs_lane_and_points_to_its_row() -> None:
    """Nothing is left out or drawn in another's lane."""
    turns = facts.in_order(sample(3, turns=60).turns)
    chart = charts.timeline("t", LOCK, turns, table_id="rows")
    lanes = cast(dict[str, list[str]], chart.option["yAxis"])["data"]
    assert lanes[0] == charts.LOCK_LANE
    assert set(lanes[1:]) == set(JOBS)
    items = series(chart, "turns")
    assert [item[-1] for item in items] == list(range(60))
    for item, turn in zip(items, turns, strict=True):
        lane, asked, granted, end, outcome, _, _ = item
        assert lanes[lane] == turn.job
        assert (asked, granted) == (turn.asked_at_ms, turn.granted_at_ms)
        assert charts.OUTCOMES[outcome] is turn.outcome
        assert end >= (granted or asked)


def test_the_lane_of_the_lock_has_every_granted_turn_and_marks_overlaps_only() -> None:
    """A picture of mutual exclusion that cannot show a fault would be decoration."""
    turns = facts.in_order(sample(3).turns)
    held = series(charts.timeline("t", LOCK, turns, table_id="rows"), "held")
    assert [item[-1] for item in held] == [row for row, turn in enumerate(turns) if turn.granted_at_ms is not None]
    assert {item[3] for item in held} == {0}
    pair = [
        TurnRow(lock="L", job=job, asked_at_ms=0, granted_at_ms=at, released_at_ms=at + 10, outcome=Outcome.COMPLETED)
        for job, at in (("A", 0), ("B", 9), ("C", 30))
    ]
    held = series(charts.timeline("t", "L", pair, table_id="rows"), "held")
    assert [item[3] for item in held] == [1, 1, 0]


def test_the_time_axis_holds_every_instant_with_a_margin() -> None:
    """No bar begins at the very edge."""
    turns = facts.in_order(sample(3).turns)
    axis = cast(dict[str, int], charts.timeline("t", LOCK, turns, table_id="rows").option["xAxis"])
    noted = facts.instants(turns)
    assert axis["min"] < min(noted)
    assert axis["max"] > max(noted)


def test_rows_added_go_up_and_rows_removed_go_down() -> None:
    """And a commit without row counts is marked as one."""
    rows = [
        CommitRow(table=TABLE, version=7, timestamp_ms=1, job="A", epoch=1, operation="WRITE", rows_added=5),
        CommitRow(table=TABLE, version=8, timestamp_ms=2, job="B", epoch=2, operation="LAKEGATE ENTRY"),
        CommitRow(
            table=TABLE, version=9, timestamp_ms=3, job="B", epoch=2, operation="MERGE", rows_added=2, rows_removed=3
        ),
        CommitRow(table=TABLE, version=10, timestamp_ms=4, operation="OPTIMIZE"),
    ]
    colours = charts.job_colours(["A", "B"])
    chart = charts.commits("c", TABLE, rows, colours=colours, table_id="rows")
    assert series(chart, "commits") == [
        [0, 5, 0, 0, 0, 0],
        [1, 0, 0, 1, 1, 1],
        [2, 2, -3, 1, 0, 2],
        [3, 0, 0, 2, 1, 3],
    ]
    assert cast(dict[str, list[str]], chart.option["xAxis"])["data"] == ["7", "8", "9", "10"]
    assert list(chart.palette) == [colours["A"], colours["B"], charts.OTHER_WRITER_COLOUR]


@pytest.mark.parametrize(
    ("durations", "labels"),
    [
        ([0], ["1 ms", "10 ms"]),
        ([1, 9], ["1 ms", "10 ms"]),
        ([15, 900], ["10 ms", "100 ms", "1 s"]),
        ([2_000, 61_000], ["1 s", "10 s", "1 min", "10 min"]),
        ([10**14], ["10 d", "100 d"]),
    ],
)
def test_the_logarithmic_axis_reaches_from_a_tick_below_to_a_tick_above(
    durations: list[int], labels: list[str]
) -> None:
    """So that every dot lies between two labelled places."""
    lanes = {"A": list(enumerate(durations))}
    chart = charts.durations("d", "time waited", lanes, table_id="rows", spread_table_id="spread")
    assert [label for _, label in chart.ticks] == labels
    assert len(series(chart, "dots")) == len(durations)


def test_a_job_without_any_duration_keeps_its_lane() -> None:
    """The lanes of both charts stay the same."""
    lanes = {"A": [(0, 20)], "B": []}
    chart = charts.durations("d", "time held", lanes, table_id="rows", spread_table_id="spread")
    assert cast(dict[str, list[str]], chart.option["yAxis"])["data"] == ["A", "B"]
    assert len(series(chart, "boxes")) == 1


def test_every_outcome_has_a_colour_and_a_letter_of_its_own() -> None:
    """Nobody has to tell two outcomes apart by colour alone."""
    marks = list(charts.OUTCOME_MARKS.values())
    assert len(set(marks)) == len(Outcome) == len(set(charts.OUTCOME_COLOURS.values()))
