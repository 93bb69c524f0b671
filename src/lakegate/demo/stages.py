"""The stages of the demo: how many rows of each are written, and about how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from lakegate.demo.lake import JOBS
from lakegate.demo.records import Cut, Inputs, rows_of_files

Show = Callable[[dict[str, Any]], None]
"""Receives every event, as JSON data: those of `lakegate run`, and the demo's own."""

WITH_TURNS, WITHOUT_CAREFUL, WITHOUT_NAIVE = "with turns", "without, careful", "without, naive"
"""The names of the runs, in the terminal and on the page."""
PREPARING, COMPARING = "preparing", "comparing"
TYPICAL_S: Mapping[str, float] = {PREPARING: 25, WITH_TURNS: 75, WITHOUT_CAREFUL: 30, WITHOUT_NAIVE: 25, COMPARING: 20}
"""How long each stage takes on two cores, in the order of the stages; only the proportions matter."""


def notice(show: Show, text: str, job: str | None = None) -> None:
    """Shows a line about the demo's own actions."""
    show({"format": 1, "event": "Noticed", "job": job, "text": text})


def plain_batch(job: str, batch: int | None) -> dict[str, Any]:
    """Returns the event of a batch that a job without turns has written; `BatchWritten` is that of streams."""
    return {"format": 1, "event": "PlainBatchWritten", "job": job, "batch": batch}


class Stages:
    """Passes events on, and after each batch shows how far its stage is, as `DemoProgress`."""

    def __init__(self, show: Show, inputs: Inputs, cut: Cut) -> None:
        self._show = show
        self._batch_rows = dict(zip(JOBS, rows_of_files(inputs, cut), strict=True))
        self._rows_max = sum(map(sum, self._batch_rows.values()))
        self._began_s = time.monotonic()
        self._stage = self._first = ""
        self._written: set[tuple[str, int]] = set()

    def begin(self, stage: str, text: str) -> None:
        """Begins a stage."""
        self._stage, self._first, self._written = stage, self._first or stage, set()
        notice(self._show, f"== {stage}: {text}")
        self._report()

    def show(self, event: dict[str, Any]) -> None:
        """Receives an event; may be called by several threads."""
        self._show(event)
        match event["event"]:
            case "TurnEnded" if event["outcome"] in ("completed", "replayed") and event["batches"]:
                first, last = event["batches"]
                self._written |= {(event["job"], batch) for batch in range(first, last + 1)}
                self._report()
            case "PlainBatchWritten":
                self._written.add((event["job"], event["batch"]))
                self._report()

    def _report(self) -> None:
        rows = sum(self._batch_rows[job][batch] for job, batch in self._written if batch < len(self._batch_rows[job]))
        share = rows / self._rows_max
        self._show(
            {
                "format": 1,
                "event": "DemoProgress",
                "stage": self._stage,
                "rows": rows,
                "rows_max": 0 if self._stage in (PREPARING, COMPARING) else self._rows_max,
                "seconds_left": round(seconds_left(self._first, self._stage, share, time.monotonic() - self._began_s)),
            }
        )


def seconds_left(first: str, stage: str, share: float, elapsed_s: float) -> float:
    """Returns about how long the rest takes: as long as is typical, at the pace so far.

    Args:
        first: The first stage; a folder that has an archive of classes needs no preparation.
        stage: The stage that goes on.
        share: The share of it that is done.
        elapsed_s: Since the beginning of the first stage.
    """
    stages = list(TYPICAL_S)[list(TYPICAL_S).index(first) :]
    done_s = sum(TYPICAL_S[one] for one in stages[: stages.index(stage)]) + share * TYPICAL_S[stage]
    left_s = sum(TYPICAL_S[one] for one in stages) - done_s
    return left_s * (elapsed_s / done_s) if done_s else left_s
