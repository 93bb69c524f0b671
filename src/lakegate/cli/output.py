"""The shared output of the commands: common options, tables for people, documents for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from lakegate.cli.app import Output
from lakegate.redaction import printable
from lakegate.report import words

if TYPE_CHECKING:
    from lakegate.syncs.plan.delay import SyncDelay

FORMAT = 1
"""The format of every JSON document that a command prints; raised when a key is removed or changes its meaning."""

SPEC = typer.Option(None, "--spec", metavar="FILE", help="The pipeline: a file, or module:name. Default: lakegate.yml.")
OUTPUT = typer.Option(Output.TEXT, "--output", help="How to print the result.")


def document(output: Output, rows_key: str, rows: Sequence[Mapping[str, Any]], **head: object) -> None:
    """Prints for machines: one document with the rows in it, or with `jsonl` a line per row."""
    if output is Output.JSONL:
        for row in rows:
            typer.echo(json.dumps({"format": FORMAT, **row}))
        return
    typer.echo(json.dumps({"format": FORMAT, **head, rows_key: list(rows)}))


def say(text: str, *, err: bool = False) -> None:
    """Prints a line for people. Control characters of names, keys and reasons are shown as escapes, never obeyed."""
    typer.echo(printable(text), err=err)


def delay_words(delay: SyncDelay) -> str:
    """Returns the delay of a sync for people, in a line of a terminal."""
    now = "unknown" if delay.now_ms is None else words.span(delay.now_ms)
    window = words.span(delay.window_ms)
    if delay.p50_ms is None:
        return f"delay now {now}; no known delay in the last {window}"
    percentiles = f"p50 {words.span(delay.p50_ms)}, p99 {words.span(delay.p99_ms)}"
    return f"delay now {now}; {percentiles} ({words.counted(delay.changes, 'change')} in {window})"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints for people: with lines and colours on a terminal, plain columns elsewhere."""
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]
        for row in (headings, *rows):
            say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for heading in headings:
        shown.add_column(heading)
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(shown)


def styled(text: str, style: str) -> None:
    """Prints a line, in colour on a terminal."""
    if not sys.stdout.isatty():
        say(text)
        return
    from rich.console import Console
    from rich.text import Text

    Console(soft_wrap=True).print(Text(printable(text), style))
