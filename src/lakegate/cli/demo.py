"""lakegate demo: three jobs on one table, with turns and without, on a local lake."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.jars import fetch_progress
from lakegate.cli.output import FORMAT, OUTPUT, table
from lakegate.cli.progress import Printer
from lakegate.errors import Corrupt, InvalidRequest
from lakegate.spark.jars import fetch, missing
from lakegate.spark.java import find_java

if TYPE_CHECKING:
    from lakegate.demo.experiment import Findings, Side
    from lakegate.demo.records import Cut, Inputs

DEFAULT_DIR = Path("lakegate-demo")
ROWS: tuple[tuple[str, Callable[[Side], object]], ...] = (
    ("micro-batches written", lambda side: side.column.batches),
    ("conflict errors", lambda side: sum(side.column.conflicts.values())),
    ("writes that overlapped", lambda side: side.column.overlaps),
    ("restarts after an error", lambda side: side.column.restarts),
    ("killed with kill -9", lambda side: side.column.killed),
    ("rows expected", lambda side: side.column.expected_rows),
    ("rows in the table", lambda side: side.column.final_rows),
    ("  missing", lambda side: side.column.missing_rows),
    ("  doubled", lambda side: side.column.doubled_rows),
    ("  under a wrong person", lambda side: side.difference.wrong_person_rows),
    ("  of erased people", lambda side: side.difference.not_erased_rows),
    ("  otherwise wrong", lambda side: side.difference.other_rows),
    ("seconds", lambda side: f"{side.elapsed_s:.0f}"),
    ("the table is", lambda side: "right" if side.difference.is_none else "wrong"),
)
"""The lines of the result: the label, and the value of one side."""


@app.command("demo")
def demo_command(
    data: Path | None = typer.Option(
        None, "--data", metavar="DIR", help="Real records: ingest/, mutation/, delete/ with SOURCE.parquet each."
    ),
    source: str = typer.Option("rlists", "--source", help="The source of --data."),
    full: bool = typer.Option(False, "--full", help="100,000 generated records instead of 4,000."),
    folder: Path = typer.Option(DEFAULT_DIR, "--dir", metavar="DIR", help="The folder of the lake."),
    seed: int = typer.Option(1, "--seed", help="The seed of the generated records."),
    s3: bool = typer.Option(False, "--s3", help="Keep the tables on an S3 server, which is started on this machine."),
    tiny: bool = typer.Option(False, "--tiny", hidden=True, help="150 generated records, for tests."),
    output: Output = OUTPUT,
) -> None:
    """Watch three jobs share one table: with turns, then without, on the same input; and compare the tables.

    With --s3 the jobs without turns use Delta's own commit store, which overwrites acknowledged commits.
    One job is killed with kill -9 in the middle. The table's changes are then applied to a PostgreSQL, and both are compared.
    Writes a report. Exit status 4 if the table with turns, or the database, is not right.
    """
    from lakegate.demo.experiment import run_experiment
    from lakegate.demo.lake import open_lake

    inputs, cut = _inputs(data, source, full=full, tiny=tiny, seed=seed)
    find_java(settings.java_sources())  # reported once, not by three processes
    with open_lake(folder, s3=s3) as lake:
        sources = settings.jar_sources()
        sets = ["delta", "s3a"] if s3 else ["delta"]
        with fetch_progress(missing(sets, sources=sources)) as progress:
            fetch(sets, sources=sources, progress=progress)
        findings = run_experiment(lake, inputs, cut, Printer(output).show)
    _print(findings, output)
    carried = findings.database
    if not findings.with_turns.difference.is_none or findings.failed or (carried is not None and carried.differences):
        ended = "".join(f"; {job} ended with exit status {code}" for job, code in findings.failed.items())
        raise Corrupt(
            f"the table written with turns, or the database behind it, is not correct{ended}",
            advice=f"This is a fault of Lakegate: please report it, with the folder {folder}",
        )


def _inputs(data: Path | None, source: str, *, full: bool, tiny: bool, seed: int) -> tuple[Inputs, Cut]:
    from lakegate.demo.generator import FULL, SMALL, TINY, generate
    from lakegate.demo.records import read_inputs

    size = FULL if full else TINY if tiny else SMALL
    if data is None:
        return generate(seed, size.rows), size.cut
    if full or tiny:
        raise InvalidRequest("--data brings its own records; nothing was made", advice="Leave out --full, or --data")
    return read_inputs(data, source), FULL.cut


def _print(findings: Findings, output: Output) -> None:
    if output is not Output.TEXT:
        sides = {
            name: {**dataclasses.asdict(side), "is_right": side.difference.is_none}
            for name, side in (("with_turns", findings.with_turns), ("without_turns", findings.without_turns))
        }
        line = {"format": FORMAT, "event": "DemoReport", "report": str(findings.report), **sides}
        database = None if findings.database is None else dataclasses.asdict(findings.database)
        typer.echo(json.dumps({**line, "database": database, "failed": dict(findings.failed)}))
        return
    rows = [(what, str(value(findings.with_turns)), str(value(findings.without_turns))) for what, value in ROWS]
    table(("", "with turns", "without turns"), rows)
    for side, name in ((findings.with_turns, "with turns"), (findings.without_turns, "without turns")):
        if side.column.conflicts:
            listed = ", ".join(f"{count} × {error}" for error, count in sorted(side.column.conflicts.items()))
            typer.echo(f"Conflict errors {name}: {listed}")
    if (carried := findings.database) is not None:
        typer.echo(
            f"PostgreSQL: {carried.rows:,} rows by {carried.changes:,} changes in {carried.elapsed_s:.0f} s; "
            f"differences from the table: {carried.differences:,}"
        )
    typer.echo(f"Report: {findings.report}")
    typer.echo(f"Open it in a browser: {findings.report.as_uri()}")
