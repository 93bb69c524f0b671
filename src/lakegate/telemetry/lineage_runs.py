"""Turns of streams and batches of syncs as runs of OpenLineage: which event of a run says what.

Rules for editors: pure, but for the rows of turns in progress; the time comes in as an argument. A message holds names, counts and
reasons, never a value of a row. A run has the same name in each process that reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from lakegate.telemetry.hook_messages import Message, News

State = Literal["START", "COMPLETE", "FAIL", "ABORT"]
STATES: Final[Mapping[str, State]] = {
    "completed": "COMPLETE",
    "replayed": "COMPLETE",
    "swept": "COMPLETE",
    "failed": "FAIL",
    "fenced": "FAIL",
    "lost": "ABORT",
}
"""Outcome of a turn → state of its run; a turn that was not granted is no run."""
LINEAGE, OPENLINEAGE = "lineage", "openlineage"
"""The kind of these messages, and their receiver."""
ROWS_MAX: Final = 1_000
"""Turns in progress whose rows are counted."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset, named by the rules of OpenLineage."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageJob:
    """A stream or a sync as a job of OpenLineage."""

    namespace: str
    """The name of the pipeline, and the place of its storage: two pipelines of one name are two."""
    name: str
    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...]


class LineageRuns:
    """Makes the messages about the runs of some jobs."""

    def __init__(self, jobs: Mapping[str, LineageJob]) -> None:
        self._jobs = jobs
        self._rows: dict[tuple[str, int], int] = {}

    def news_of(self, data: Mapping[str, Any], *, pipeline: str, now_ms: int) -> list[News]:
        """Returns what there is to report about an event; see `hook_messages.news_of`."""
        job = self._jobs.get(data.get("job") or data.get("sync") or "")
        if job is None:
            return []
        match data["event"]:
            case "TurnGranted":
                return [_news(job, f"turn {data['lock']} {data['epoch']}", "START", now_ms)]
            case "BatchWritten":
                turn = (job.name, data["epoch"])
                self._rows[turn] = self._rows.pop(turn, 0) + data["rows_written"]
                if len(self._rows) > ROWS_MAX:
                    del self._rows[next(iter(self._rows))]
            case "TurnEnded" if data["outcome"] in STATES:
                rows = self._rows.pop((job.name, data["epoch"]), None)
                state, run = STATES[data["outcome"]], f"turn {data['lock']} {data['epoch']}"
                return [_news(job, run, state, data["released_at_ms"], rows=rows, reason=data.get("reason"))]
            case "BatchApplied":
                run = f"batch {data['batch']} {data['position']}"  # numbers begin again in a new target
                return [
                    _news(job, run, "START", now_ms),
                    _news(job, run, "COMPLETE", now_ms, rows=data.get("rows")),
                ]
        return []


def _news(
    job: LineageJob, run: str, state: State, at_ms: int, *, rows: int | None = None, reason: str | None = None
) -> News:
    message: Message = {
        "event": LINEAGE,
        "job": job.name,
        "namespace": job.namespace,
        "state": state,
        "run": run,
        "at_ms": at_ms,
        "inputs": job.inputs,
        "outputs": job.outputs,
        "rows": rows,
        "reason": reason,
    }
    return News(key=(LINEAGE, job.name, run, "START" if state == "START" else "end"), message=message)
