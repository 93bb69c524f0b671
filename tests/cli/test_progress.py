"""The bars of the demo on a terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console

from lakegate.cli.progress import Bars
from lakegate.demo.stages import TYPICAL_S, WITH_TURNS, WITHOUT_CAREFUL


def drawn(bars: Bars) -> list[str]:
    """The lines on a terminal of 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(bars)
    return captured.get().splitlines()


def progress(stage: str, rows: int, seconds_left: int) -> Mapping[str, object]:
    return {"event": "DemoProgress", "stage": stage, "rows": rows, "rows_max": 4104, "seconds_left": seconds_left}


def test_the_bars_show_rows_and_time_left_and_the_last_event_in_a_line() -> None:
    """A stage before is full; a long event is cut at the edge of the screen, and its control characters are shown as escapes."""
    with Bars(tuple(TYPICAL_S)) as bars:
        bars.show(dict(progress(WITH_TURNS, 1_000, 125)))
        bars.show({"event": "Noticed", "job": "TTL", "text": f"waits\x1b[2J {'x' * 200}"})
        lines = drawn(bars)
        assert len(lines) == len(TYPICAL_S) + 1
        assert [line.split()[:2] for line in lines][1] == ["with", "turns"]
        assert lines[1].rstrip().endswith("1,000 of 4,104 rows")
        assert lines[-1].startswith(r"about 2:05 left  TTL: waits\x1b[2J xxx")
        assert all(len(line) <= 80 for line in lines)
        bars.show(dict(progress(WITHOUT_CAREFUL, 0, 60)))
        assert drawn(bars)[2].rstrip().endswith("0 of 4,104 rows")
        assert drawn(bars)[1].count("━") == 30
