"""lakegate verify: checks that turns did not overlap, and that every batch is in its table exactly once."""

from __future__ import annotations

import json

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, say, styled
from lakegate.errors import Corrupt
from lakegate.report import words


@app.command("verify")
def verify_command(spec: str | None = SPEC, output: Output = OUTPUT) -> None:
    """Compare ledger, logs, checkpoints and sources: no overlapping turns, each batch once, no file rewritten (else exit 4)."""
    from lakegate.ops.inspection import verify_pipeline

    pipeline = settings.load_pipeline(spec)
    found = verify_pipeline(pipeline)
    rows = [{"kind": "violation", "where": one.where, "what": one.what} for one in found.violations]
    rows += [{"kind": "unchecked", "where": "", "what": text} for text in found.unchecked]
    counts = {"turns": found.turns, "commits": found.commits, "batches": found.batches}
    match output:
        case Output.JSON:
            say(
                json.dumps(
                    {
                        "format": FORMAT,
                        "pipeline": pipeline.name,
                        "is_whole": not found.violations,
                        "counts": counts,
                        "violations": [{"where": one.where, "what": one.what} for one in found.violations],
                        "unchecked": found.unchecked,
                    }
                )
            )
        case Output.JSONL:
            typer.echo(json.dumps({"format": FORMAT, "kind": "counts", **counts}))
            for row in rows:
                typer.echo(json.dumps({"format": FORMAT, **row}))
        case Output.TEXT:
            for one in found.violations:
                styled(f"violated: {one}", "red")
            for text in found.unchecked:
                say(f"not checked: {text}")
            if not found.violations:
                say(
                    f"{words.counted(found.turns, 'turn')}, none overlap; "
                    f"{words.counted(found.batches, 'batch', 'batches')}, each exactly once; "
                    f"{words.counted(found.commits, 'commit')} in order"
                )
    if found.violations:
        count = len(found.violations)
        raise Corrupt(
            f"{count} violation{'s' if count > 1 else ''} found; nothing was changed. First: {found.violations[0]}",
            advice="Stop the streams and inspect the named commits before anything else is written",
        )
