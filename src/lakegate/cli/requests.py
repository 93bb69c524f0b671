"""lakegate requests: lists stored requests, retries or drops dead ones."""

from __future__ import annotations

import dataclasses
import json

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, document, say, table
from lakegate.report import words

requests = typer.Typer(help="The stored requests of a mutate or erase stream.", no_args_is_help=True)
app.add_typer(requests, name="requests")

STREAM = typer.Argument(..., metavar="STREAM", help="A stream of kind mutate or erase.")
IDS = typer.Argument(..., metavar="ID...", help="Request ids, as `list` prints them.")
HEADINGS = ("id", "state", "op", "first seen", "batch", "rows", "where from", "reason")


@requests.command("list")
def list_command(
    stream: str = STREAM,
    state: list[str] | None = typer.Option(None, "--state", help="Only these states; may be repeated."),
    limit: int = typer.Option(100, "--limit", min=1, help="Maximum number, newest first."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Show stored requests, newest first; never their values."""
    from lakegate.ops.table_admin import RequestDesk

    rows = RequestDesk(settings.load_pipeline(spec), stream).rows(state or [], rows_max=limit)
    if output is not Output.TEXT:
        document(output, "requests", [dataclasses.asdict(row) for row in rows], stream=stream)
        return
    if not rows:
        say(f"{stream} has no such request")
        return
    cells = [
        (
            row.request_id,
            row.state,
            row.op,
            words.clock(row.first_seen_ms, has_day=True),
            str(row.batch),
            str(row.matched_rows),
            row.source_position or words.NOTHING,
            row.reason or "",
        )
        for row in rows
    ]
    table(HEADINGS, cells)


@requests.command("replay")
def replay_command(
    stream: str = STREAM, ids: list[str] = IDS, spec: str | None = SPEC, output: Output = OUTPUT
) -> None:
    """Set dead requests back to waiting, from now on. Takes a turn."""
    from lakegate.ops.table_admin import RequestDesk

    changed = RequestDesk(settings.load_pipeline(spec), stream).replay(ids)
    _say(stream, "replayed", changed, output)


@requests.command("drop")
def drop_command(
    stream: str = STREAM,
    ids: list[str] = IDS,
    reason: str = typer.Option(..., "--reason", help="The reason; kept in the request table's history."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Drop dead requests. Takes a turn."""
    from lakegate.ops.table_admin import RequestDesk

    changed = RequestDesk(settings.load_pipeline(spec), stream).drop(ids, reason)
    _say(stream, "dropped", changed, output)


@requests.command("accept-loss")
def accept_loss_command(
    stream: str = STREAM,
    reason: str = typer.Option(..., "--reason", help="The reason; kept in the note next to the table."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Go on without active requests of a table that are gone: their table was lost, or their stream was removed."""
    from lakegate.ops.table_admin import accept_loss

    table_path = accept_loss(settings.load_pipeline(spec), stream, reason)
    if output is Output.TEXT:
        say(f"{stream}: its missing requests for {table_path} are no longer required")
    else:
        typer.echo(json.dumps({"format": FORMAT, "stream": stream, "table": table_path}))


def _say(stream: str, verb: str, changed: int, output: Output) -> None:
    if output is Output.TEXT:
        say(f"{stream}: {changed} request{'s' if changed != 1 else ''} {verb}")
    else:
        typer.echo(json.dumps({"format": FORMAT, "stream": stream, verb: changed}))
