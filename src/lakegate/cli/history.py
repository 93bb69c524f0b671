"""lakegate history: the turns of a table, newest first."""

from __future__ import annotations

from itertools import islice
from typing import Any

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import OUTPUT, SPEC, document, say, table
from lakegate.report import words
from lakegate.telemetry.events import TurnEnded
from lakegate.telemetry.hook_messages import tallied

HEADINGS = ("epoch", "job", "outcome", "ended", "batches", "waited", "held", "versions", "reason")


@app.command("history")
def history_command(
    table_name: str = typer.Argument(..., metavar="TABLE", help="A table of the file, by its name or path."),
    limit: int = typer.Option(20, "--limit", min=1, help="Maximum number of turns."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Show the turns in which the streams of a table wrote, or tried to; newest first."""
    from lakegate.ops.inspection import history_of, table_named, turn_as_json

    pipeline = settings.load_pipeline(spec)
    wanted = table_named(pipeline, table_name)
    found = list(islice(history_of(pipeline, wanted), limit))
    if output is not Output.TEXT:
        document(output, "turns", [turn_as_json(row) for row in found], table=wanted.name)
        return
    if not found:
        say(f"no turn on {wanted.name} yet")
        return
    table(HEADINGS, [_cells(row, wanted.path) for row in found])


def _cells(row: TurnEnded, place: str | None) -> tuple[str, ...]:
    granted_ms = row.granted_at_ms
    waited_ms = (row.released_at_ms if granted_ms is None else granted_ms) - row.asked_at_ms
    held_ms = None if granted_ms is None else max(0, row.released_at_ms - granted_ms)
    versions = row.versions.get(place or "", ()) or [v for many in row.versions.values() for v in many]
    batches: Any = row.batches
    return (
        words.NOTHING if row.epoch is None else str(row.epoch),
        row.job,
        row.outcome,
        words.clock(row.released_at_ms, has_day=True),
        words.NOTHING
        if batches is None
        else str(batches[0])
        if batches[0] == batches[1]
        else f"{batches[0]}-{batches[1]}",
        words.span(max(0, waited_ms) if row.closed_by is None else None),
        words.span(held_ms),
        ", ".join(map(str, versions)) or words.NOTHING,
        row.reason or (f"not met: {tallied(row.unmet)}" if row.unmet else ""),
    )
