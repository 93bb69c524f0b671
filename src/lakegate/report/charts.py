"""Converts rows to ECharts options: plain JSON; `page.js` adds browser-only parts (drawing, the theme's colours).

Rules for editors:
- An item of a series ends with the index of its row in the table behind the chart: that row is its tooltip.
- A colour is a name of `page.css`, as `var(--ink)`; the page inserts its value, again after each change of the theme.
- Every series is a custom series, so that ten thousand items stay usable: the page skips items that would be drawn over
  identical ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import TypeAlias

from lakegate.report import facts
from lakegate.report.data import CommitRow, Outcome, TurnRow

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

OUTCOMES = tuple(Outcome)
OUTCOME_COLOURS = {outcome: f"var(--{outcome.value.replace('_', '-')})" for outcome in OUTCOMES}
OUTCOME_MARKS = {
    Outcome.COMPLETED: "",
    Outcome.REPLAYED: "R",
    Outcome.SWEPT: "S",
    Outcome.GAVE_UP: "G",
    Outcome.FAILED: "F",
    Outcome.LOST: "L",
    Outcome.FENCED: "X",
}
"""A letter next to the colour, for eyes and printers that do not distinguish colours."""

JOB_COLOURS = tuple(f"var(--job-{place})" for place in range(8))
"""As many colours as eyes distinguish; with more jobs they repeat, and the tooltip has the name."""
OTHER_WRITER_COLOUR = "var(--job-other)"

LOCK_LANE = "lock held"

TICKS_MS = (
    (1, "1 ms"),
    (10, "10 ms"),
    (100, "100 ms"),
    (1_000, "1 s"),
    (10_000, "10 s"),
    (60_000, "1 min"),
    (600_000, "10 min"),
    (3_600_000, "1 h"),
    (36_000_000, "10 h"),
    (86_400_000, "1 d"),
    (864_000_000, "10 d"),
    (8_640_000_000, "100 d"),
)

LANE_PX = 40
SCALE_AND_SLIDER_PX = 76
"""The height of the axis labels, the axis name, and the slider below."""
CHARACTER_PX = 7.2
"""Width of an average character of an axis label; reserves space for the longest name."""
GUTTER_PX_MAX = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing: its element, its ECharts options, and the tables whose rows explain its items."""

    id: str
    label: str
    """The text for a screen reader instead of the drawing."""
    height_px: int
    option: Mapping[str, Json]
    tables: Mapping[str, str]
    """Id of a series → id of the table with its rows."""
    palette: Sequence[str]
    marks: Sequence[str] = ()
    ticks: Sequence[tuple[float, str]] = ()
    """Labels of an axis whose values are logarithms."""
    is_zoomable: bool = True

    def as_json(self) -> dict[str, Json]:
        """The data that the page needs to draw it."""
        return {
            "id": self.id,
            "option": self.option,
            "tables": self.tables,
            "palette": self.palette,
            "marks": self.marks,
            "ticks": self.ticks,
        }


def job_colours(jobs: Sequence[str]) -> dict[str, str]:
    """Returns job → its colour."""
    return {job: JOB_COLOURS[place % len(JOB_COLOURS)] for place, job in enumerate(jobs)}


def timeline(chart_id: str, lock: str, turns: Sequence[TurnRow], *, table_id: str) -> Chart:
    """Returns the chart of one lock's turns: a lane for the lock itself, and one for each job.

    Args:
        chart_id: Id of the element to draw in.
        lock: Name of the lock.
        turns: Its turns, at least one, in the order of the table's rows.
        table_id: Id of the table with one row for each turn.
    """
    held = facts.holds(turns)
    ends = {id(hold.turn): hold for hold in held}
    overlapped = {id(hold.turn) for pair in facts.overlapping(held) for hold in pair}
    lanes = [LOCK_LANE, *dict.fromkeys(turn.job for turn in turns)]
    lane_of = {job: place for place, job in enumerate(lanes) if place > 0}
    turn_items: list[Json] = []
    held_items: list[Json] = []
    for row, turn in enumerate(turns):
        hold = ends.get(id(turn))
        end = hold.until_ms if hold else turn.released_at_ms
        turn_items.append(
            [
                lane_of[turn.job],
                turn.asked_at_ms,
                turn.granted_at_ms,
                turn.asked_at_ms if end is None else end,
                OUTCOMES.index(turn.outcome),
                int(hold is not None and hold.is_cut_off),
                row,
            ]
        )
        if hold:
            held_items.append([0, hold.from_ms, hold.until_ms, int(id(turn) in overlapped), row])
    noted = facts.instants(turns)
    first, last = min(noted), max(noted)
    margin = max(1, (last - first) // 100)
    height = 8 + LANE_PX * len(lanes) + SCALE_AND_SLIDER_PX
    option: dict[str, Json] = {
        **_common(),
        "useUTC": True,
        "grid": {"left": _gutter_px(lanes), "right": 16, "top": 8, "height": LANE_PX * len(lanes)},
        "xAxis": {
            "type": "time",
            "min": first - margin,
            "max": last + margin,
            "name": "time of day, UTC" if last - first < 86_400_000 else "time, UTC",
            **_axis(has_lines=True),
        },
        "yAxis": _lanes(lanes),
        "dataZoom": _zoom(value_span_min=20),
        "series": [
            {
                "id": "turns",
                "type": "custom",
                "dimensions": ["lane", "asked", "granted", "end", "outcome", "cut off", "row"],
                "encode": {"x": [1, 2, 3], "y": 0},
                "data": turn_items,
                "clip": True,
                "progressive": 0,
            },
            {
                "id": "held",
                "type": "custom",
                "dimensions": ["lane", "from", "until", "overlapped", "row"],
                "encode": {"x": [1, 2], "y": 0},
                "data": held_items,
                "clip": True,
                "progressive": 0,
            },
        ],
    }
    return Chart(
        id=chart_id,
        label=f"Timeline of {len(turns):,} turns on {lock}, one lane for each job; the same as the table below it.",
        height_px=height,
        option=option,
        tables={"turns": table_id, "held": table_id},
        palette=[OUTCOME_COLOURS[outcome] for outcome in OUTCOMES],
        marks=[OUTCOME_MARKS[outcome] for outcome in OUTCOMES],
    )


def commits(
    chart_id: str, table: str, rows: Sequence[CommitRow], *, colours: Mapping[str, str], table_id: str
) -> Chart:
    """Returns the chart of one table's versions: rows added upward, rows removed downward, a mark where no count is known.

    Args:
        chart_id: Id of the element to draw in.
        table: Name of the table.
        rows: Its commits by version, at least one.
        colours: Every job of `rows` → its colour.
        table_id: Id of the HTML table with one row for each commit.
    """
    colour_of = {job: place for place, job in enumerate(colours)}
    items: list[Json] = [
        [
            place,
            commit.rows_added or 0,
            -(commit.rows_removed or 0),
            len(colour_of) if commit.job is None else colour_of[commit.job],
            int(commit.is_without_rows),
            place,
        ]
        for place, commit in enumerate(rows)
    ]
    option: dict[str, Json] = {
        **_common(),
        "grid": {"left": 76, "right": 16, "top": 16, "height": 220},
        "xAxis": {
            "type": "category",
            "data": [str(commit.version) for commit in rows],
            "name": f"version of {table}",
            **_axis(has_lines=False),
        },
        "yAxis": {
            "type": "value",
            "name": "← removed    rows    added →",
            **_axis(has_lines=True),
            "nameGap": 58,
            "splitNumber": 4,
        },
        "dataZoom": _zoom(value_span_min=4),
        "series": [
            {
                "id": "commits",
                "type": "custom",
                "dimensions": ["version", "added", "removed", "job", "without rows", "row"],
                "encode": {"x": 0, "y": [1, 2]},
                "data": items,
                "clip": True,
                "progressive": 0,
            }
        ],
    }
    return Chart(
        id=chart_id,
        label=f"{len(rows):,} versions of {table}, with the rows added and removed; the same as the table below it.",
        height_px=16 + 220 + SCALE_AND_SLIDER_PX,
        option=option,
        tables={"commits": table_id},
        palette=[*colours.values(), OTHER_WRITER_COLOUR],
    )


def durations(
    chart_id: str,
    name: str,
    lanes: Mapping[str, Sequence[tuple[int, int]]],
    *,
    table_id: str,
    spread_table_id: str,
) -> Chart:
    """Returns the chart of durations for each job: a dot for each turn, a box from the lower to the upper quarter.

    Args:
        chart_id: Id of the element to draw in.
        name: The measured quantity, as on the axis: `time waited`.
        lanes: Job → its turns as (row in the table of turns, milliseconds), at least one in all.
        table_id: Id of the table of turns.
        spread_table_id: Id of the table with one row for each job, in the order of `lanes`.
    """
    jobs = list(lanes)
    dots: list[Json] = [
        [_logarithm(duration), lane, row] for lane, job in enumerate(jobs) for row, duration in lanes[job]
    ]
    boxes: list[Json] = []
    for lane, job in enumerate(jobs):
        spread = facts.spread(duration for _, duration in lanes[job])
        if spread:
            quantiles = (spread.lower_quarter, spread.median, spread.upper_quarter, spread.p95)
            boxes.append([*(_logarithm(quantile) for quantile in quantiles), lane, lane])
    every = [duration for turns in lanes.values() for _, duration in turns]
    ticks = _ticks(min(every), max(every))
    places: list[Json] = [place for place, _ in ticks]
    option: dict[str, Json] = {
        **_common(),
        "grid": {"left": _gutter_px(jobs), "right": 24, "top": 8, "height": LANE_PX * len(jobs)},
        "xAxis": {
            "type": "value",
            "min": ticks[0][0],
            "max": ticks[-1][0],
            "name": f"{name}, logarithmic",
            **_axis(has_lines=False),
            "axisTick": {"show": True, "customValues": places, "lineStyle": {"color": "var(--axis)"}},
            "axisLabel": {"color": "var(--ink-soft)", "fontSize": 12, "customValues": places, "hideOverlap": True},
        },
        "yAxis": _lanes(jobs),
        "series": [
            {
                "id": "boxes",
                "type": "custom",
                "dimensions": ["lower quarter", "median", "upper quarter", "p95", "lane", "row"],
                "encode": {"x": [0, 1, 2, 3], "y": 4},
                "data": boxes,
                "progressive": 0,
            },
            {
                "id": "dots",
                "type": "custom",
                "dimensions": ["logarithm", "lane", "row"],
                "encode": {"x": 0, "y": 1},
                "data": dots,
                "progressive": 0,
            },
        ],
    }
    return Chart(
        id=chart_id,
        label=f"The {name} of each turn, for each job. The table below it has the quantiles.",
        height_px=8 + LANE_PX * len(jobs) + 52,
        option=option,
        tables={"dots": table_id, "boxes": spread_table_id},
        palette=["var(--completed)"],
        ticks=ticks,
        is_zoomable=False,
    )


def _common() -> dict[str, Json]:
    return {"animation": False, "tooltip": {"trigger": "item"}}


def _axis(*, has_lines: bool) -> dict[str, Json]:
    return {
        "nameLocation": "middle",
        "nameGap": 28,
        "nameTextStyle": {"color": "var(--ink-soft)", "fontSize": 12},
        "axisLabel": {
            "color": "var(--ink-soft)",
            "fontSize": 12,
            "hideOverlap": True,
            # A time axis sets the first label of an hour or a day in bold, which looks like a stray emphasis here.
            "rich": {"primary": {"fontWeight": "normal"}},
        },
        "axisLine": {"show": False, "lineStyle": {"color": "var(--axis)"}},
        "axisTick": {"show": False},
        "splitLine": {"show": has_lines, "lineStyle": {"color": "var(--grid)"}},
    }


def _lanes(names: Sequence[str]) -> dict[str, Json]:
    return {
        "type": "category",
        "data": list(names),
        "inverse": True,
        "axisLabel": {"color": "var(--ink)", "fontSize": 13, "width": GUTTER_PX_MAX - 16, "overflow": "truncate"},
        "axisLine": {"show": False},
        "axisTick": {"show": False},
        "splitLine": {"show": True, "lineStyle": {"color": "var(--grid)"}},
    }


def _zoom(*, value_span_min: int) -> list[Json]:
    # A wheel turned without Ctrl scrolls the page: a chart that swallows it traps the reader.
    return [
        {
            "id": "inside",
            "type": "inside",
            "filterMode": "weakFilter",
            "zoomOnMouseWheel": "ctrl",
            "moveOnMouseWheel": False,
            "minValueSpan": value_span_min,
        },
        {
            "id": "slider",
            "type": "slider",
            "filterMode": "weakFilter",
            "minValueSpan": value_span_min,
            "height": 12,
            "bottom": 8,
            "showDetail": False,
            "showDataShadow": False,
            "brushSelect": False,
            "borderColor": "transparent",
            "backgroundColor": "var(--sunken)",
            "fillerColor": "var(--slider)",
            "handleIcon": "path://M0,0 h4 v12 h-4 z",
            "handleStyle": {"color": "var(--axis)", "borderWidth": 0},
            "moveHandleSize": 0,
        },
    ]


def _gutter_px(names: Sequence[str]) -> int:
    return min(GUTTER_PX_MAX, round(16 + CHARACTER_PX * max(len(name) for name in names)))


def _logarithm(milliseconds: int) -> float:
    # The clock counts whole milliseconds: less than one is drawn as one.
    return round(log10(max(1, milliseconds)), 4)


def _ticks(shortest: int, longest: int) -> list[tuple[float, str]]:
    """Returns the labelled positions of the axis: from the last at or below the shortest to the first at or above the longest."""
    low = max(place for place, (value, _) in enumerate(TICKS_MS) if value <= max(1, shortest))
    high = min(
        (place for place, (value, _) in enumerate(TICKS_MS) if value >= longest and place > low),
        default=len(TICKS_MS) - 1,
    )
    low = min(low, high - 1)
    return [(_logarithm(value), label) for value, label in TICKS_MS[low : high + 1]]
