"""lakegate explain: what a statement depends on, and how it behaves with concurrent statements."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, say
from lakegate.errors import InvalidRequest


@app.command("explain")
def explain_command(
    statement: str = typer.Argument(
        ..., metavar="SQL", help="DELETE, UPDATE, MERGE, INSERT or OPTIMIZE, e.g. of delta.`/data/t`."
    ),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Explain what a statement depends on, and what happens to it if another commit comes first. Executes nothing."""
    from lakegate.ops import table_admin

    try:
        pipeline = settings.load_pipeline(spec)
    except InvalidRequest:
        if spec is not None:
            raise
        pipeline = None  # a statement needs no file; a file only configures Spark
    found = table_admin.explain(statement, pipeline)
    say(str(found) if output is Output.TEXT else json.dumps({"format": FORMAT, **asdict(found)}))
