"""lakegate erasure: certifies that persons are gone from a table's bytes, and checks such certificates."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import FORMAT, OUTPUT, SPEC, document, say, styled, table
from lakegate.errors import Corrupt, InvalidRequest
from lakegate.report import words

if TYPE_CHECKING:
    from lakegate.config import Pipeline
    from lakegate.erasure.certificate import Certificate
    from lakegate.erasure.completion import Plan, Step
    from lakegate.ops.certify import Question

erasure = typer.Typer(help="Certificates of physical erasure.", no_args_is_help=True)
app.add_typer(erasure, name="erasure")

SHOWN_MAX = 100
"""More places are in the certificate."""
FILES_MAX = 3
"""Files that stay, shown for each reason."""
DOES = {
    "delete requests": "delete ended requests",
    "purge": "rewrite files with hidden rows (REORG … APPLY (PURGE))",
    "vacuum": "delete files (VACUUM)",
    "checkpoint": "write a checkpoint",
    "clean log": "delete commits and checkpoints",
    "mask texts": "write stars over values in texts",
}


TABLE = typer.Option(..., "--table", metavar="TABLE", help="A table of the file, or the path of a table.")
PERSON = typer.Option(
    None, "--person", metavar="COLUMN=VALUE", help="A person; may be repeated, each is looked for by itself."
)
REQUESTS = typer.Option(
    None, "--requests", metavar="STREAM", help="All persons whose erasures by this erase stream are in force."
)
ANYWHERE = typer.Option(
    False, "--anywhere", help="Look for the values as words in the texts of all other columns, too."
)
OUT = typer.Option(
    None, "--out", metavar="FOLDER", help="Folder for the certificates. Default: in the storage of the file."
)


@erasure.command("certify")
def certify_command(
    table_: str = TABLE,
    person: list[str] | None = PERSON,
    requests: str | None = REQUESTS,
    anywhere: bool = ANYWHERE,
    out: Path | None = OUT,
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Look for persons in every byte under a table, and in the storage of the file; write a certificate.

    Exit status 4 if something is found, or if a file could not be looked at. Values are never written: only salted hashes.
    """
    pipeline = _pipeline(spec, is_needed=requests is not None)
    question, out = _asked(pipeline, table_, person, requests, out, is_anywhere=anywhere)
    _certify(question, out, output)


@erasure.command("complete")
def complete_command(
    table_: str = typer.Option(..., "--table", metavar="TABLE", help="A table of the file."),
    person: list[str] | None = PERSON,
    requests: str | None = REQUESTS,
    out: Path | None = OUT,
    is_yes: bool = typer.Option(
        False, "--yes", help="Do it. Without this option the plan is printed, nothing is changed."
    ),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Take away what is found of persons whose rows are erased: files, hidden rows, commits, requests that have ended.

    Prints what it would do, in order, and what has to stay. With --yes it does so in a turn of the lock, and then certifies.
    Exit status 4 if something has to stay, or is still found. After a kill, repeat the command.
    """
    from lakegate.ops.complete import Completion

    pipeline = settings.load_pipeline(spec)
    question, out = _asked(pipeline, table_, person, requests, out, is_anywhere=False)
    known = pipeline.tables.get(table_)
    if known is None:
        raise InvalidRequest(
            "--table must name a table of the file: its lock gives the turn; nothing was changed", table=table_
        )
    with _progress(output) as progress:
        completion = Completion(question, pipeline, known, progress)

    def short(location: str) -> str:
        return table_ if location == question.table else location.removeprefix(f"{pipeline.storage}/")

    def doing(step: Step) -> None:
        if output is Output.TEXT:
            say(f"{DOES[step.action]}: {short(step.table)}")

    if is_yes:
        completion.carry_out(doing)
    plan = completion.plan()
    if output is Output.TEXT:
        _show_plan(plan, short, is_dry=not is_yes)
    if is_yes:
        _certify(question, out, output, plan)
    elif output is not Output.TEXT:
        typer.echo(json.dumps({"format": FORMAT, **_lists(plan)}))
    if plan.left:
        raise typer.Exit(Corrupt.exit_code)


@erasure.command("verify")
def verify_command(
    files: list[Path] = typer.Argument(..., metavar="FILE...", help="Certificates, as JSON."),
    with_files: bool = typer.Option(
        False, "--files", help="Also compare the files that were looked at: unchanged, or gone."
    ),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Check that certificates are unchanged and that each is linked to the previous one (exit status 4 if not)."""
    from lakegate.ops import certify

    pipeline = _pipeline(spec, is_needed=False)
    found = [certify.check(file, {} if pipeline is None else pipeline.spark, with_files=with_files) for file in files]
    if output is not Output.TEXT:
        document(output, "certificates", [dataclasses.asdict(one) for one in found])
    for one in found if output is Output.TEXT else ():
        for fault in one.faults:
            say(f"{one.file}: {fault}")
        if not one.faults:
            compared = (
                f"; {one.same} files unchanged, {one.gone} gone, {one.not_compared} not compared" if with_files else ""
            )
            say(f"{one.file}: holds; its verdict is {one.verdict}{compared}")
    if any(one.faults for one in found):
        raise typer.Exit(Corrupt.exit_code)


def _asked(
    pipeline: Pipeline | None,
    table_: str,
    person: list[str] | None,
    requests: str | None,
    out: Path | None,
    *,
    is_anywhere: bool,
) -> tuple[Question, Path]:
    """Returns the persons and the places to look at, and the folder for the certificate."""
    from lakegate.ops import certify

    if bool(person) == bool(requests):
        raise InvalidRequest("either --person or --requests is needed; nothing was certified")
    known = None if pipeline is None else pipeline.tables.get(table_)
    if known is not None and known.path is None:
        raise InvalidRequest(
            "the table has no path, but a catalog's name; nothing was certified", advice="Give its path"
        )
    location = table_ if known is None or known.path is None else known.path
    if out is None:
        if pipeline is None:
            raise InvalidRequest("without a file of a pipeline, --out is needed; nothing was certified")
        out = Path(pipeline.storage) / "certificates" / table_.rstrip("/").rpartition("/")[2]
    persons = tuple(map(certify.person, person or ()))
    if requests is not None and pipeline is not None:
        persons = certify.persons_of(pipeline, requests)
    question = certify.Question(
        table=location,
        persons=persons,
        storage=None if pipeline is None else pipeline.storage,
        settings={} if pipeline is None else pipeline.spark,
        is_anywhere=is_anywhere,
    )
    return question, out


def _certify(question: Question, out: Path, output: Output, plan: Plan | None = None) -> None:
    """Writes the certificate and shows it; ends with status 4 unless it is clean."""
    from lakegate.ops import certify
    from lakegate.report.certificate_page import render

    with _progress(output) as progress:
        file, made = certify.write(out, question, render, progress)
    _show(file, made, output, {} if plan is None else _lists(plan))
    if made.verdict != "clean":
        raise typer.Exit(Corrupt.exit_code)


def _pipeline(spec: str | None, *, is_needed: bool) -> Pipeline | None:
    try:
        settings.spec_argument(spec)
    except InvalidRequest:
        if spec is not None or is_needed:
            raise
        return None
    return settings.load_pipeline(spec)


@contextmanager
def _progress(output: Output) -> Iterator[Callable[[int, int], None]]:
    """Gives a function that moves a bar, on a terminal."""
    if output is not Output.TEXT or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(file: Path, made: Certificate, output: Output, more: Mapping[str, object]) -> None:
    if output is not Output.TEXT:
        counts = {"looked_at": len(made.looked_at), "found": len(made.found), "not_looked_at": len(made.not_looked_at)}
        typer.echo(json.dumps({"format": FORMAT, "file": str(file), "verdict": made.verdict, **counts, **more}))
        return
    styled(
        f"{made.verdict}: {words.counted(len(made.persons), 'person')}, {words.counted(len(made.looked_at), 'file')} looked at",
        "bold",
    )
    if made.found:
        cells = [
            (one.place, one.where, one.column, str(one.rows), words.clock(one.gone_at_ms, has_day=True), one.path)
            for one in made.found[:SHOWN_MAX]
        ]
        table(("place", "where", "column", "rows", "may be gone from", "path"), cells)
    if len(made.found) > SHOWN_MAX:
        say(f"and {len(made.found) - SHOWN_MAX} more places, in the certificate")
    for unseen in made.not_looked_at[:SHOWN_MAX]:
        say(f"not looked at: {unseen.path}: {unseen.reason}")
    if len(made.not_looked_at) > SHOWN_MAX:
        say(f"and {len(made.not_looked_at) - SHOWN_MAX} more that were not looked at")
    say(str(file))


def _lists(plan: Plan) -> dict[str, list[dict[str, object]]]:
    return {
        "steps": [dataclasses.asdict(one) for one in plan.steps],
        "left": [dataclasses.asdict(one) for one in plan.left],
    }


def _show_plan(plan: Plan, short: Callable[[str], str], *, is_dry: bool) -> None:
    if plan.steps:
        styled("to be done, in this order" if is_dry else "left for the next run", "bold")
        table(
            ("step", "files", "bytes", "table"),
            [
                (
                    DOES[one.action],
                    str(len(one.files) or ""),
                    f"{one.size_bytes:,}" if one.files else "",
                    short(one.table),
                )
                for one in plan.steps
            ],
        )
    for step in plan.steps:
        if step.before is not None:
            say(f"versions below {step.before} of {short(step.table)} cannot be read afterwards")
    if any(one.action == "vacuum" for one in plan.steps):
        say("older versions that need the deleted files cannot be read afterwards")
    if plan.left:
        styled("stays", "bold")
    for left in plan.left:
        when = "" if left.at_ms is None else f", until {words.clock(left.at_ms, has_day=True)}"
        say(f"{words.counted(len(left.files), 'file')} of {short(left.table)}{when}: {left.why}")
        for name in left.files[:FILES_MAX]:
            say(f"  {name}")
        if len(left.files) > FILES_MAX:
            say(f"  and {len(left.files) - FILES_MAX} more")
    if is_dry and plan.steps:
        say("Nothing was changed. To do it, repeat the command with --yes")
    if not plan.steps and not plan.left:
        say("nothing is left to take away")
