"""How far the demo is: the rows of the batches that are written, and the time left."""

from __future__ import annotations

from typing import Any

import pytest

from lakegate.cli.progress import line_of
from lakegate.demo.generator import SMALL, generate
from lakegate.demo.records import rows_of_files
from lakegate.demo.stages import TYPICAL_S, WITH_TURNS, WITHOUT_CAREFUL, Stages, plain_batch, seconds_left
from lakegate.telemetry.events import BatchWritten, to_json

FIRST, *_, LAST = TYPICAL_S


def test_a_stage_counts_the_rows_of_each_batch_once() -> None:
    """With turns by the turns that ended, without by the batches that were written; a repeated one adds nothing."""
    inputs, shown = generate(1, SMALL.rows), list[dict[str, Any]]()
    ingest, mutation, _ = rows_of_files(inputs, SMALL.cut)
    stages = Stages(shown.append, inputs, SMALL.cut)

    def rows() -> int:
        return int([event for event in shown if event["event"] == "DemoProgress"][-1]["rows"])

    stages.begin(WITH_TURNS, "three jobs")
    for outcome, batches in (("completed", [0, 1]), ("lost", [2, 2]), ("gave_up", None)):
        stages.show({"event": "TurnEnded", "job": "Ingestion", "outcome": outcome, "batches": batches})
    assert rows() == ingest[0] + ingest[1]
    stages.begin(WITHOUT_CAREFUL, "three jobs")
    assert rows() == 0
    counts = dict.fromkeys(("rows_written", "rows_erased", "dead_letters", "dead_requests"), 1)
    done = BatchWritten(lock="L", job="Mutation", epoch=1, batch=1, is_sweep=False, rows_in=None, **counts)
    stages.show(to_json(done))
    for _ in range(2):
        stages.show(plain_batch("Mutation", 0))
    assert line_of(plain_batch("Mutation", 0)) is None  # a terminal shows the bar instead
    assert rows() == mutation[0]
    assert sum(map(sum, rows_of_files(inputs, SMALL.cut))) == shown[-1]["rows_max"]


@pytest.mark.parametrize("pace", [1.0, 3.0])
def test_the_time_left_is_the_typical_time_at_the_pace_so_far(pace: float) -> None:
    """All of it at the beginning; a third of a machine's speed takes three times as long; nothing at the end."""
    total_s = sum(TYPICAL_S.values())
    assert seconds_left(FIRST, FIRST, 0.0, 0.0) == total_s
    assert seconds_left(FIRST, FIRST, 1.0, pace * TYPICAL_S[FIRST]) == pytest.approx(
        pace * (total_s - TYPICAL_S[FIRST])
    )
    assert seconds_left(FIRST, LAST, 1.0, pace * total_s) == 0
    assert seconds_left(WITH_TURNS, WITH_TURNS, 0.0, 0.0) == total_s - TYPICAL_S[FIRST]
