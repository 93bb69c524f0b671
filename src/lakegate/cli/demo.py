"""lakegate demo: three jobs on one table, with turns and without, on a local lake."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.jars import fetch_progress
from lakegate.cli.output import FORMAT, OUTPUT, table
from lakegate.cli.progress import Bars, Printer
from lakegate.errors import Corrupt, InvalidRequest
from lakegate.report.comparison import lines, sentence
from lakegate.spark.jars import fetch, missing
from lakegate.spark.java import find_java

if TYPE_CHECKING:
    from lakegate.demo.experiment import Findings
    from lakegate.demo.records import Cut, Inputs
    from lakegate.demo.stages import Show

DEFAULT_DIR = Path("lakegate-demo")


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

    Without turns the jobs run twice: as a careful engineer writes them, and with naive appends. With --s3 they use Delta's own
    commit store, which overwrites acknowledged commits. In each run one job is killed with kill -9 in the middle. The changes of
    the table with turns are then applied to a PostgreSQL, and both are compared.
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
        with _shown(output) as show:
            findings = run_experiment(lake, inputs, cut, show)
    _print(findings, output)
    ours, carried = findings.comparison.runs[0], findings.database
    if ours.differing_rows or findings.failed or (carried is not None and carried.differences):
        ended = "".join(f"; {job} ended with exit status {code}" for job, code in findings.failed.items())
        raise Corrupt(
            f"the table written with turns, or the database behind it, is not correct{ended}",
            advice=f"This is a fault of Lakegate: please report it, with the folder {folder}",
        )


@contextlib.contextmanager
def _shown(output: Output) -> Iterator[Show]:
    """Yields what shows the events: bars on a terminal, lines elsewhere."""
    from lakegate.demo.stages import TYPICAL_S

    if output is not Output.TEXT or not sys.stderr.isatty():
        yield Printer(output).show
        return
    with Bars(tuple(TYPICAL_S)) as bars:
        yield bars.show


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
    compared = findings.comparison
    if output is not Output.TEXT:
        runs = [{**dataclasses.asdict(run), "is_right": not run.differing_rows} for run in compared.runs]
        line = {"format": FORMAT, "event": "DemoReport", "report": str(findings.report), "runs": runs}
        database = None if findings.database is None else dataclasses.asdict(findings.database)
        typer.echo(json.dumps({**line, "database": database, "failed": dict(findings.failed)}))
        return
    table(("", *(run.name for run in compared.runs)), [(line.label, *line.values) for line in lines(compared)])
    if (carried := findings.database) is not None:
        typer.echo(
            f"PostgreSQL: {carried.rows:,} rows by {carried.changes:,} changes in {carried.elapsed_s:.0f} s; "
            f"differences from the table: {carried.differences:,}"
        )
    typer.echo(f"Report: {findings.report.as_uri()}")
    typer.echo(sentence(compared))
