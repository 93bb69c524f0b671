"""lakegate sync verify: compares databases with their sources."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from lakegate import settings
from lakegate.cli.app import Output
from lakegate.cli.output import OUTPUT, SPEC, delay_words, document, say, styled, table
from lakegate.cli.sync import NAME, named, sessions_of, sync
from lakegate.errors import Corrupt, InvalidRequest
from lakegate.redaction import masked
from lakegate.report import words

if TYPE_CHECKING:
    from lakegate.syncs.verify import VerifiedSync


SOURCE = typer.Option(
    None,
    "--source",
    metavar="DSN",
    help="The source's own database for the comparison: an address without a password, or '${NAME}' for the value of an "
    "environment variable. Default: `source_dsn` of the file; otherwise the changes.",
)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def _address(source: str | None) -> str | None:
    """Returns the address that --source names.

    Raises:
        InvalidRequest: It has a password, which other users of the machine can read; or names no variable.
    """
    if source is None:
        return None
    named = _VARIABLE.fullmatch(source)
    if named is not None:
        value = settings.environment().get(named[1])
        if value is None:
            raise InvalidRequest("--source names an environment variable that is not set", variable=named[1])
        return value
    try:
        parts = urlsplit(source)
        is_secret = bool(parts.password) or masked("", f"?{parts.query}") != f"?{parts.query}"
    except ValueError:
        is_secret = True
    if is_secret:
        raise InvalidRequest(
            "--source has a password, and other users of the machine can read the arguments of a command; nothing was compared",
            advice="Write --source '${NAME}' for an environment variable, or source_dsn: in the file; change the password",
        )
    return source


@sync.command("verify")
def verify_command(
    name: str | None = NAME,
    limit: int = typer.Option(100, "--limit", min=0, help="How many differences of a table to list; all are counted."),
    source: str | None = SOURCE,
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Compare databases with their sources, each as of its position, and list rows that differ (exit status 4).

    The source is read independently of the sync: its own database (--source), or the records of its files or topics one by
    one. Rows that could not be compared are reported. Writers may go on meanwhile. Nothing is written to the target except
    temporary tables, which end with the command.
    """
    rows, differences = [], 0
    sessions = sessions_of(spec, name)
    for session in sessions:
        with named(session, sessions), session:
            found, delay = session.verify(limit, source_dsn=_address(source)), session.delay()
        differences += found.differences
        tables = [{**dataclasses.asdict(one), "differences": one.differences} for one in found.tables]
        rows.append(
            {"sync": session.name, **dataclasses.asdict(found), "tables": tables, "differences": found.differences}
            | {"delay": dataclasses.asdict(delay)}
        )
        if output is Output.TEXT:
            _show(session.name, found)
            say(delay_words(delay))
    if output is not Output.TEXT:
        document(output, "syncs", json.loads(json.dumps(rows, default=str)))
    if differences:
        raise typer.Exit(Corrupt.exit_code)


@sync.command("repair")
def repair_command(
    name: str = typer.Argument(..., metavar="NAME", help="A sync of the file."),
    source: str | None = SOURCE,
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Write the differences that `sync verify` finds to the target, as batches of the sync: missing, different and extra rows.

    Run `sync verify` first to see them. Takes the sync over: a run in progress ends with status 5. Exit status 4 if rows differ
    afterwards.
    """
    (session,) = sessions_of(spec, name)
    with session:
        repaired, found = session.repair(source_dsn=_address(source))
    if output is Output.TEXT:
        say(f"{name}: {words.counted(repaired, 'row')} repaired")
        _show(name, found)
    else:
        document(output, "syncs", [{"sync": name, "repaired": repaired, "differences": found.differences}])
    if found.differences:
        raise typer.Exit(Corrupt.exit_code)


@sync.command("cutover")
def cutover_command(
    name: str = typer.Argument(..., metavar="NAME", help="A sync of the file."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Move sequences and identities of the target past the rows that the sync has written, so that others can insert.

    Before, nobody may write to the source any more, and `sync run --until-idle` must have applied everything.
    """
    (session,) = sessions_of(spec, name)
    with session:
        moved = session.cutover()
    if output is not Output.TEXT:
        document(output, "sequences", [dataclasses.asdict(one) for one in moved], sync=name)
    elif not moved:
        say(f"{name}: no sequence of the target has to be moved")
    else:
        cells = [(one.table, one.column, one.sequence, str(one.was), str(one.now)) for one in moved]
        table(("table", "column", "sequence", "next was", "next is"), cells)


def _show(name: str, found: VerifiedSync) -> None:
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
    if found.behind:
        say("the source has more that the target does not have yet: a run brings it")
    if found.unfinished:
        count = words.counted(found.unfinished, "record")
        say(f"{count} of transactions whose end has not come: not compared")
    if found.passed_over:
        say(f"{words.counted(found.passed_over, 'record')} that the sync does not apply: compared as well")
    if found.unread:
        say(f"{words.counted(found.unread, 'record')} that cannot be read: not compared")
    for compared in found.tables:
        for note in compared.notes:
            say(f"{compared.table}: {note}")
    if found.set_apart:
        say(f"{words.counted(found.set_apart, 'row')} quarantined: see lakegate dead-letters list {name}")
    for compared in found.tables:
        for one in compared.listed:
            where = f": {', '.join(one.columns)}" if one.columns else ""
            where += " (quarantined)" if one.is_set_apart else ""
            typer.echo(f"  {one.kind}  {one.table} {json.dumps(one.key, default=str)}{where}")
        if len(compared.listed) < compared.differences:
            say(f"  and {compared.differences - len(compared.listed)} more of {compared.table}")
