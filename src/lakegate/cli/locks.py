"""lakegate locks: lists every lock of the coordinator, and takes a turn away from its holder."""

from __future__ import annotations

import dataclasses
import json

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, document, say, table
from lakegate.report import words

locks = typer.Typer(help="The locks whose turns the streams take.", no_args_is_help=True)
app.add_typer(locks, name="locks")


@locks.callback()
def _group() -> None:
    """The locks whose turns the streams take."""


@locks.command("list")
def list_command(spec: str | None = SPEC, output: Output = OUTPUT) -> None:
    """Show every lock of the coordinator, also those of other pipelines on it."""
    from lakegate.ops.inspection import all_locks

    pipeline = settings.load_pipeline(spec)
    found = all_locks(pipeline)
    if output is not Output.TEXT:
        document(output, "locks", [dataclasses.asdict(one) for one in found], pipeline=pipeline.name)
        return
    cells = [
        (
            one.lock,
            str(one.epoch) if one.epoch else words.NOTHING,
            one.holder or "nobody",
            words.clock(one.since_ms, has_day=True),
            words.NOTHING if one.is_alive is None else "yes" if one.is_alive else "no",
            str(one.waiting),
            str(one.in_doubt),
        )
        for one in found
    ]
    table(("lock", "epoch", "held by", "since", "alive", "waiting", "in doubt"), cells)


@locks.command("break")
def break_command(
    lock: str = typer.Argument(..., metavar="LOCK", help="A lock, as `list` prints it."),
    reason: str = typer.Option(..., "--reason", metavar="TEXT", help="The reason; kept in the ledger."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Take the turn away from its holder at any time. Its batch runs again; no row is lost or duplicated."""
    from lakegate.ops.turn_admin import break_lock

    broken = break_lock(settings.load_pipeline(spec), lock, reason)
    if output is not Output.TEXT:
        typer.echo(json.dumps({"format": FORMAT, "broken": dataclasses.asdict(broken)}))
        return
    say(f"the turn of {broken.job} (epoch {broken.epoch}, pid {broken.pid} on {broken.host}) on {lock} is over")
    if broken.was_alive:
        say(
            "  its process is alive and may still write until the next turn enters the table, which then refuses it; "
            "end the process if it hangs"
        )
    for token_id in broken.token_ids:
        say(f"  in doubt: {token_id}, until the next turn has entered the tables")
