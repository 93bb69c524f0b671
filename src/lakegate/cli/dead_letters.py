"""lakegate dead-letters: lists, drops, corrects and resends the records that streams and syncs have set aside."""

from __future__ import annotations

import dataclasses
import json
import time

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, document, say, table
from lakegate.errors import InvalidRequest
from lakegate.report import words

dead_letters = typer.Typer(help="Records, requests and rows that were set aside.", no_args_is_help=True)
app.add_typer(dead_letters, name="dead-letters")

NAME = typer.Argument(..., metavar="NAME", help="A stream or a sync of the file.")
IDS = typer.Argument(..., metavar="ID...", help="Ids, as `list` prints them.")
HEADINGS = ("name", "what", "id", "when", "age", "where from", "reason")


@dead_letters.command("list")
def list_command(
    name: str | None = typer.Argument(None, metavar="[NAME]", help="A stream or a sync of the file. Default: all."),
    values: bool = typer.Option(False, "--values", help="Print the values, too. They may be personal."),
    limit: int = typer.Option(100, "--limit", min=1, help="Maximum number for each, newest first."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Show records, requests and rows that were set aside, with the reason; their values only with --values."""
    from lakegate.ops.dead_letters import desks

    found = [
        row
        for desk in desks(settings.load_pipeline(spec), name)
        for row in desk.rows(rows_max=limit, has_values=values)
    ]
    if output is not Output.TEXT:
        rows = [dataclasses.asdict(row) for row in found]
        for row in rows if not values else ():
            del row["values"]
        document(output, "dead_letters", rows)
        return
    if not found:
        say(f"{name or 'nothing'} has nothing set aside" if name else "nothing is set aside")
        return
    now_ms = int(time.time() * 1000)
    cells = [
        (
            row.name,
            row.kind,
            row.id,
            words.NOTHING if row.at_ms is None else words.clock(row.at_ms, has_day=True),
            words.NOTHING if row.at_ms is None else words.span(max(0, now_ms - row.at_ms)),
            row.position or words.NOTHING,
            row.reason,
            *([row.values or words.NOTHING] if values else []),
        )
        for row in found
    ]
    table((*HEADINGS, "values") if values else HEADINGS, cells)


@dead_letters.command("drop")
def drop_command(
    name: str = NAME,
    ids: list[str] = IDS,
    reason: str | None = typer.Option(None, "--reason", help="The reason; kept in the table's history."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Delete records that were set aside. Takes a turn."""
    from lakegate.ops.dead_letters import desks

    (desk,) = desks(settings.load_pipeline(spec), name)
    _say(name, "dropped", desk.drop(ids, reason), output)


@dead_letters.command("retry")
def retry_command(
    name: str = NAME,
    ids: list[str] = IDS,
    set_: list[str] | None = typer.Option(
        None,
        "--set",
        metavar="COLUMN=VALUE",
        help="A corrected value, for all named ids; `null` is NULL. May be repeated.",
    ),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Send records that were set aside again, once, corrected or unchanged. Takes a turn.

    A record that is refused again stays set aside. After a killed command, the same command continues where it stopped.
    """
    from lakegate.ops.dead_letters import desks

    corrections: dict[str, str] = {}
    for one in set_ or []:
        column, sign, value = one.partition("=")
        if not sign or not column:
            raise InvalidRequest("--set needs COLUMN=VALUE; nothing was done", given=column)
        corrections[column] = value
    (desk,) = desks(settings.load_pipeline(spec), name)
    _say(name, "sent again", desk.retry(ids, corrections), output)


def _say(name: str, verb: str, changed: int, output: Output) -> None:
    if output is Output.TEXT:
        say(f"{name}: {changed} {verb}")
    else:
        typer.echo(json.dumps({"format": FORMAT, "name": name, verb.replace(" ", "_"): changed}))
