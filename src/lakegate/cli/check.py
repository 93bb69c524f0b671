"""lakegate check: finds everything wrong with the file and its surroundings at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, say, styled
from lakegate.ops.finding import Finding, exit_code

STYLES = {"ok": "green", "note": "", "warning": "yellow", "fault": "red"}


@app.command("check")
def check_command(
    no_spark: bool = typer.Option(False, "--no-spark", help="Skip the checks that need Spark: SQL, schemas, tables."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Find every fault of the file at once (exit 2), then compare it with folders, checkpoints and tables."""
    pipeline = settings.load_pipeline(spec)
    from lakegate.ops.inspection import check_pipeline
    from lakegate.runtime import session_for

    found = check_pipeline(pipeline, spark=session_for(pipeline) if pipeline.streams and not no_spark else None)
    faults = [one for one in found if one.level == "fault"]
    print_findings(found, output, pipeline=pipeline.name)
    if output is Output.TEXT:
        streams, syncs = len(pipeline.streams), len(pipeline.syncs)
        count = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}"
        what = f"{streams} streams, {syncs} syncs" if syncs else f"{streams} streams"
        say(f"{pipeline.name}: {what}, {count}" + ("; nothing was changed" if faults else ""))
    if faults:
        raise typer.Exit(exit_code(found))


def print_findings(found: Sequence[Finding], output: Output, **head: object) -> None:
    """Prints findings as they come, the level first."""
    match output:
        case Output.TEXT:
            for one in found:
                styled(f"{one.level}: {one}", STYLES[one.level])
        case Output.JSON:
            rows = [dataclasses.asdict(one) for one in found]
            typer.echo(json.dumps({"format": FORMAT, **head, "exit_code": exit_code(found), "findings": rows}))
        case Output.JSONL:
            for one in found:
                typer.echo(json.dumps({"format": FORMAT, **dataclasses.asdict(one)}))
