"""lakegate order: checks and simulates the order rules of the file."""

from __future__ import annotations

import dataclasses
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import OUTPUT, SPEC, document, say, styled, table
from lakegate.config.value_types import duration_ms
from lakegate.errors import Fault, InvalidRequest
from lakegate.ops.order_simulation import DAYS_MAX, Paced, Replayed, replay
from lakegate.report import words
from lakegate.turns.protocol.ordering import describe, lint

if TYPE_CHECKING:
    from lakegate.config import Pipeline

TAKES_MS = 60_000
"""The length of a turn if neither the ledger nor an option states it."""
LAST_TURNS = 10_000
"""So many turns of the ledger count, the newest."""

order = typer.Typer(help="The order of the streams.", no_args_is_help=True)
app.add_typer(order, name="order")


@order.callback()
def _group() -> None:
    """The order of the streams."""


@order.command("lint")
def lint_command(spec: str | None = SPEC, output: Output = OUTPUT) -> None:
    """Find cycles and unknown names (exit 2), and the costs of a `strict` rule."""
    # Errors in the rules are faults of the file, which is refused with all of them; only warnings remain here.
    pipeline = settings.load_pipeline(spec)
    rows = []
    for lock in dict.fromkeys(one.lock for one in pipeline.tables.values()):
        streams = pipeline.streams_of_lock(lock)
        rules = {stream.name: stream.order for stream in streams}
        findings = lint(rules, {stream.name: stream.every_ms for stream in streams})
        rows.append(
            {
                "lock": lock,
                "rules": {name: describe(rule) for name, rule in rules.items()},
                "findings": [{"severity": one.severity, "job": one.job, "text": one.text} for one in findings],
            }
        )
        if output is Output.TEXT:
            styled(f"Lock {lock}", "bold")
            for name, rule in rules.items():
                say(f"  {name}: {describe(rule)}")
            for finding in findings:
                styled(f"  {finding.severity}: {finding.text}", "yellow")
            if not findings:
                say("  nothing to say against it")
    if output is not Output.TEXT:
        document(output, "locks", rows, pipeline=pipeline.name)


@order.command("simulate")
def simulate_command(
    days: int = typer.Option(30, "--days", min=1, max=DAYS_MAX, help="Number of days."),
    takes: list[str] | None = typer.Option(
        None,
        "--takes",
        metavar="STREAM=DURATION",
        help="The length of a stream's turns, as TTL=30m. Default: as in the ledger, else a minute.",
    ),
    polls: bool = typer.Option(
        False,
        "--polls",
        help="Simulate a coordinator without a queue: lock, read who was last, unlock, retry in a minute.",
    ),
    seed: int = typer.Option(1, "--seed", help="The seed of the random lengths of turns, plus or minus 30 %."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Replay the streams' paces for some days: turns done, turns wasted, the longest gap between two of a stream."""
    pipeline = settings.load_pipeline(spec)
    lengths = _lengths(pipeline, takes or [])
    rows = []
    for lock in dict.fromkeys(one.lock for one in pipeline.tables.values()):
        jobs = [
            Paced(
                job=stream.name,
                every_ms=stream.every_ms,
                takes_ms=lengths[stream.name],
                rule=stream.order,
                absent_after_ms=stream.absent_after_ms,
                priority=stream.priority,
                aging_ms=stream.aging_ms,
            )
            for stream in pipeline.streams_of_lock(lock)
        ]
        found = replay(jobs, days=days, lock_timeout_ms=pipeline.coordinator.lock_timeout_ms, seed=seed, polls=polls)
        rows.append({"lock": lock, "jobs": [dataclasses.asdict(one) for one in found]})
        if output is Output.TEXT:
            _show(lock, days, jobs, found)
    if output is not Output.TEXT:
        document(output, "locks", rows, pipeline=pipeline.name, days=days, seed=seed, polls=polls)


def _show(lock: str, days: int, jobs: list[Paced], found: list[Replayed]) -> None:
    styled(f"Lock {lock}, {words.counted(days, 'day')}", "bold")
    cells = [
        (
            one.job,
            describe(job.rule) + (f", priority {job.priority}" if job.priority else ""),
            "at once" if job.every_ms is None else words.span(job.every_ms),
            words.span(job.takes_ms),
            words.count(one.turns),
            words.count(one.wasted),
            words.span(one.longest_gap_ms),
            words.span(one.mean_wait_ms),
        )
        for job, one in zip(jobs, found, strict=True)
    ]
    table(("job", "order", "every", "takes", "turns", "wasted", "longest gap", "mean wait"), cells)


def _lengths(pipeline: Pipeline, takes: list[str]) -> dict[str, int]:
    """Returns stream → the length of its turns, in milliseconds."""
    from lakegate.ops.inspection import turns_of

    held: dict[str, list[int]] = {stream.name: [] for stream in pipeline.streams}
    for row in islice(turns_of(pipeline), LAST_TURNS):
        if row.job in held and row.granted_at_ms is not None:
            held[row.job].append(max(1, row.released_at_ms - row.granted_at_ms))
    lengths = {name: round(median(spans)) if spans else TAKES_MS for name, spans in held.items()}
    faults = []
    for said in takes:
        name, _, length = said.partition("=")
        length_ms = duration_ms(length)
        if name not in lengths:
            faults.append(
                Fault(where=f"--takes {said}", what=f"there is no stream {name!r}", expected=", ".join(lengths))
            )
        elif length_ms is None:
            faults.append(Fault(where=f"--takes {said}", what="not a duration", expected="STREAM=DURATION, as TTL=30m"))
        else:
            lengths[name] = length_ms
    if faults:
        raise InvalidRequest(faults=faults)
    return lengths
