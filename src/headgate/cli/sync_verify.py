"""headgate sync verify: databases compared with their sources."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import typer

from headgate.cli.app import Output
from headgate.cli.output import OUTPUT, SPEC, document, say, styled, table
from headgate.cli.sync import NAME, keepers_of, named, sync
from headgate.errors import Corrupt
from headgate.report import words

if TYPE_CHECKING:
    from headgate.syncs.verify import Verified


@sync.command("verify")
def verify_command(
    name: str | None = NAME,
    limit: int = typer.Option(100, "--limit", min=0, help="How many differences of a table to list; all are counted."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Compare databases with their sources, each as of the position that it has, and list rows that differ (exit status 4).

    A writer may go on meanwhile. Nothing is written to the target but temporary tables, which end with the command.
    """
    rows, differences = [], 0
    keepers = keepers_of(spec, name)
    for keeper in keepers:
        with named(keeper, keepers), keeper:
            found = keeper.verify(limit)
        differences += found.differences
        tables = [{**dataclasses.asdict(one), "differences": one.differences} for one in found.tables]
        rows.append(
            {"sync": keeper.name, **dataclasses.asdict(found), "tables": tables, "differences": found.differences}
        )
        if output is Output.TEXT:
            _show(keeper.name, found)
    if output is not Output.TEXT:
        document(output, "syncs", json.loads(json.dumps(rows, default=str)))
    if differences:
        raise typer.Exit(Corrupt.exit_code)


def _show(name: str, found: Verified) -> None:
    number = words.counted(found.differences, "difference") if found.differences else "no difference"
    styled(f"{name}: {number} as of position {found.position} (batch {found.last_batch})", "bold")
    cells = [
        (one.table, one.not_compared, *[words.NOTHING] * 4)
        if one.not_compared
        else (
            one.table,
            str(one.at_source),
            str(one.in_target),
            str(one.missing),
            "not asked" if one.extra is None else str(one.extra),
            str(one.different),
        )
        for one in found.tables
    ]
    table(("table", "at the source", "in the target", "missing", "extra", "different"), cells)
    if any(one.extra is None for one in found.tables if not one.not_compared):
        say("not asked: the changes begin in the middle of the table's history, so rows may be older than they are")
    if found.set_apart:
        say(f"{words.counted(found.set_apart, 'row')} set apart: see headgate sync dead-letters {name}")
    for compared in found.tables:
        for one in compared.listed:
            where = f": {', '.join(one.columns)}" if one.columns else ""
            typer.echo(f"  {one.kind}  {one.table} {json.dumps(one.key, default=str)}{where}")
        if len(compared.listed) < compared.differences:
            say(f"  and {compared.differences - len(compared.listed)} more of {compared.table}")
