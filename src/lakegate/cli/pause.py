"""lakegate pause and resume: stops a stream from taking turns, and lets it continue."""

from __future__ import annotations

import dataclasses
import json

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, say
from lakegate.report import words

STREAM = typer.Argument(..., metavar="STREAM", help="A stream of the file.")


@app.command("pause")
def pause_command(
    stream: str = STREAM,
    reason: str = typer.Option(
        ..., "--reason", metavar="TEXT", help="The reason; shown by status, kept in the ledger."
    ),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Stop a stream from taking further turns; its current turn goes on to its end. Streams `after` it do not wait for it."""
    from lakegate.ops.turn_admin import pause

    made = pause(settings.load_pipeline(spec), stream, reason)
    if output is not Output.TEXT:
        typer.echo(json.dumps({"format": FORMAT, "stream": stream, "paused": dataclasses.asdict(made)}))
        return
    say(f"{stream} is {made}; let it go on with: lakegate resume {stream}")


@app.command("resume")
def resume_command(
    stream: str = STREAM,
    reason: str = typer.Option("", "--reason", metavar="TEXT", help="The reason; kept in the ledger."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Allow a paused stream to take turns again."""
    from lakegate.ops.turn_admin import resume

    ended = resume(settings.load_pipeline(spec), stream, reason)
    if output is not Output.TEXT:
        typer.echo(json.dumps({"format": FORMAT, "stream": stream, "resumed": dataclasses.asdict(ended)}))
        return
    say(f"{stream} goes on; it was {ended} (since {words.clock(ended.since_ms, has_day=True)})")
