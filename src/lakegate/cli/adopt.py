"""lakegate adopt: mark a table as governed by a lock, or remove the mark."""

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
    lock: str | None = typer.Option(
        None, "--lock", metavar="L", help="The lock of the table. Default: that of the file."
    ),
    release: bool = typer.Option(False, "--release", help="Remove the mark."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Record on the table itself to which lock it belongs, for other pipelines to see. Commits nothing to the table."""
    if release and lock is not None:
        raise InvalidRequest("--lock and --release exclude each other; nothing was done")
    from lakegate.ops import table_admin

    pipeline = settings.load_pipeline(spec)
    if release:
        location, was_there = table_admin.release(pipeline, table)
        said = f"{location} is no longer governed" if was_there else f"{location} was not governed"
        facts: dict[str, object] = {"table": location, "is_governed": False, "was_governed": was_there}
    else:
        location, note = table_admin.adopt(pipeline, table, lock)
        said = f"{location} is governed by the lock {note.lock}"
        facts = {"table": location, "is_governed": True, "lock": note.lock, "created_at_ms": note.created_at_ms}
    say(said if output is Output.TEXT else json.dumps({"format": FORMAT, **facts}))
