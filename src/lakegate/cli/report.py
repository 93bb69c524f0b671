"""lakegate report: writes turns and commits as one HTML file."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, say
from lakegate.delta.commit_file import Commit
from lakegate.errors import Corrupt, Unavailable
from lakegate.private_files import write_file
from lakegate.report.data import COMPARISON, CommitRow, Comparison, ReportData, TurnRow


@app.command("report")
def report_command(
    html: Path = typer.Option(..., "--html", metavar="FILE", help="The file to write."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Draw turns and commits as one HTML file that needs no network."""
    from lakegate.ops.inspection import commits_of, turns_of
    from lakegate.report.html_file import render

    pipeline = settings.load_pipeline(spec)
    data = ReportData(
        pipeline=pipeline.name,
        made_at_ms=time.time_ns() // 1_000_000,
        machine=f"{platform.node()}, {platform.system()}, {os.cpu_count()} cores",
        turns=tuple(TurnRow.from_event(row) for row in turns_of(pipeline)),
        commits=tuple(commit_row(table, commit) for table, commit in commits_of(pipeline)),
        comparison=_comparison(settings.spec_folder(spec) / COMPARISON),
    )
    try:
        write_file(html, render(data))
    except OSError as error:
        raise Unavailable(f"the report cannot be written: {error.strerror}", path=html) from error
    if output is Output.TEXT:
        say(str(html.absolute()))
        return
    facts = {"file": str(html.absolute()), "turns": len(data.turns), "commits": len(data.commits)}
    typer.echo(json.dumps({"format": FORMAT, **facts}))


def _comparison(file: Path) -> Comparison | None:
    """Returns the demo's experiment, if this is the demo's pipeline."""
    try:
        return Comparison.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Corrupt("the demo's comparison cannot be read; no report was written", path=file) from error


def commit_row(table: str, commit: Commit) -> CommitRow:
    """Converts a commit for the report; rows that were changed count as removed and added."""
    said, metrics = commit.user_metadata or {}, commit.metrics

    def number(*names: str) -> int | None:
        known = [int(metrics[name]) for name in names if metrics.get(name, "").isdecimal()]
        return sum(known) if known else None

    # For a MERGE, numOutputRows also counts rows that were copied unchanged.
    is_write = "numOutputRows" in metrics and commit.operation != "MERGE"
    added = ("numOutputRows",) if is_write else ("numTargetRowsInserted", "numTargetRowsUpdated", "numUpdatedRows")
    return CommitRow(
        table=table,
        version=commit.version,
        timestamp_ms=commit.timestamp_ms,
        job=said.get("job"),
        epoch=said.get("epoch"),
        batch=said.get("batch"),
        step=said.get("step"),
        operation=commit.operation,
        rows_added=number(*added),
        rows_removed=number("numTargetRowsDeleted", "numTargetRowsUpdated", "numDeletedRows", "numUpdatedRows"),
    )
