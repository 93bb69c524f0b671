"""lakegate adopt: mark a table as governed by a lock, or take the mark away."""

from __future__ import annotations

import json

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, say
from lakegate.errors import InvalidRequest


@app.command("adopt")
def adopt_command(
    table: str = typer.Argument(
        ..., metavar="TABLE", help="A table of the file, by its name or path; or another path."
    ),
    lock: str | None = typer.Option(None, "--lock", metavar="L", help="Its lock. Default: that of the file."),
    release: bool = typer.Option(False, "--release", help="Take the mark away."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Say on the table itself to which lock it belongs, so that other pipelines are told. Commits nothing to it."""
    if release and lock is not None:
        raise InvalidRequest("--lock and --release are two different things; nothing was done")
    from lakegate.ops import table_admin

    pipeline = settings.load_pipeline(spec)
    if release:
        location, was_there = table_admin.release(pipeline, table)
        said = f"{location} is governed no longer" if was_there else f"{location} was not governed"
        facts: dict[str, object] = {"table": location, "is_governed": False, "was_governed": was_there}
    else:
        location, note = table_admin.adopt(pipeline, table, lock)
        said = f"{location} is governed by the lock {note.lock}"
        facts = {"table": location, "is_governed": True, "lock": note.lock, "created_at_ms": note.created_at_ms}
    say(said if output is Output.TEXT else json.dumps({"format": FORMAT, **facts}))
