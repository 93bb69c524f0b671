"""lakegate timeline: draws the turns of each lock over time, a line for each job."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from itertools import islice, takewhile
from typing import Any

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import OUTPUT, SPEC, document, say, styled
from lakegate.config.value_types import duration_ms
from lakegate.errors import Fault, InvalidRequest
from lakegate.report import words
from lakegate.telemetry.events import PersonActed, TurnEnded

WIDTH = 96
MARKS = {"completed": "█", "replayed": "▓", "swept": "▒", "gave_up": "·", "failed": "x", "lost": "x", "fenced": "x"}
"""Outcome → its mark; where several share a position, the later one of this list is drawn."""
WAITS = "-"


@app.command("timeline")
def timeline_command(
    since: str | None = typer.Option(None, "--since", metavar="DURATION", help="How far back, as 6h. Default: all."),
    limit: int = typer.Option(500, "--limit", min=1, help="Maximum number of turns, the newest."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Draw waiting and holding of turns over time, from the ledger; and the actions of persons."""
    from lakegate.ops.inspection import actions_of, turn_as_json, turns_of

    pipeline = settings.load_pipeline(spec)
    from_ms = _from_ms(since)
    turns = list(islice(takewhile(lambda row: row.released_at_ms >= from_ms, turns_of(pipeline)), limit))[::-1]
    acts = [act for act in actions_of(pipeline) if act.at_ms >= from_ms]
    if output is not Output.TEXT:
        rows: list[dict[str, Any]] = [{"kind": "turn", **turn_as_json(row)} for row in turns]
        rows += [{"kind": "action", **dataclasses.asdict(act)} for act in acts]
        document(output, "events", sorted(rows, key=_at_ms), pipeline=pipeline.name)
        return
    if not turns and not acts:
        say("no turn yet" if since is None else f"no turn since {since}")
    for lock in sorted({row.lock for row in turns} | {act.lock for act in acts}):
        _draw(lock, [row for row in turns if row.lock == lock], [act for act in acts if act.lock == lock])


def _from_ms(since: str | None) -> int:
    back_ms = 0 if since is None else duration_ms(since)
    if back_ms is None:
        raise InvalidRequest(faults=[Fault(where="--since", what=repr(since), expected="a duration, as 6h or 2d")])
    return 0 if since is None else time.time_ns() // 1_000_000 - back_ms


def _at_ms(row: Mapping[str, Any]) -> int:
    return int(row["released_at_ms"] if row["kind"] == "turn" else row["at_ms"])


def _draw(lock: str, turns: list[TurnEnded], acts: list[PersonActed]) -> None:
    styled(f"Lock {lock}", "bold")
    if turns:
        first_ms = min(row.asked_at_ms for row in turns)
        last_ms = max(row.released_at_ms for row in turns)
        say(f"  {words.period(first_ms, last_ms)}; one place is {words.span((last_ms - first_ms) / WIDTH)}")
        jobs = list(dict.fromkeys(row.job for row in sorted(turns, key=lambda row: row.asked_at_ms)))
        width = max(map(len, jobs))
        for job in jobs:
            mine = [row for row in turns if row.job == job]
            done = sum(row.granted_at_ms is not None for row in mine)
            say(f"  {job.ljust(width)} |{line(mine, first_ms, last_ms)}| {words.counted(done, 'turn')}")
        seen = dict.fromkeys(row.outcome for row in turns)
        legend = [f"{MARKS[outcome]} {outcome.replace('_', ' ')}" for outcome in MARKS if outcome in seen]
        say("  " + ", ".join([f"{WAITS} waited", *legend]))
    for act in acts:
        epoch = "" if act.epoch is None else f" (epoch {act.epoch})"
        end = "" if act.outcome == "done" else f" – {act.outcome.replace('_', ' ')}"
        at = words.clock(act.at_ms, has_day=True)
        say(f"  {at} {act.by}: {act.action} {act.job}{epoch}: {act.reason or 'no reason given'}{end}")


def line(turns: list[TurnEnded], first_ms: int, last_ms: int) -> str:
    """Returns the turns of a job in `WIDTH` characters from the first instant to the last."""
    places = [" "] * WIDTH
    order = [" ", WAITS, *MARKS.values()]

    def put(begin_ms: int, end_ms: int, mark: str) -> None:
        scale = WIDTH / max(1, last_ms - first_ms)
        begin = min(WIDTH - 1, int((begin_ms - first_ms) * scale))
        end = min(WIDTH, max(begin + 1, round((end_ms - first_ms) * scale)))
        for place in range(begin, end):
            places[place] = max(places[place], mark, key=order.index)

    for row in turns:
        granted_ms = row.released_at_ms if row.granted_at_ms is None else row.granted_at_ms
        if granted_ms > row.asked_at_ms:
            put(row.asked_at_ms, granted_ms, WAITS)
        put(granted_ms, row.released_at_ms, MARKS[row.outcome])
    return "".join(places)
