"""headgate status: who has the turn, who waits and why, what each job has done."""

from __future__ import annotations

import dataclasses
from typing import Any

import typer

from headgate import settings
from headgate.checks.status import LockStatus
from headgate.cli.app import Output, app
from headgate.cli.output import OUTPUT, SPEC, document, styled, table
from headgate.report import words


@app.command("status")
def status_command(spec: str | None = SPEC, output: Output = OUTPUT) -> None:
    """Show each lock: who has the turn, who waits and why, what each job has done, what is left of erased rows."""
    from headgate.inspect import erasures_of, status_of

    pipeline = settings.load_pipeline(spec)
    locks, erasures = status_of(pipeline), erasures_of(pipeline)
    if output is not Output.TEXT:
        rows: list[dict[str, Any]] = [{"kind": "lock", **_plain(lock)} for lock in locks]
        for erasure in erasures:
            left = None
            if erasure.left is not None:
                left = {**dataclasses.asdict(erasure.left), "files": erasure.left.files}
            rows.append({"kind": "erasure", "job": erasure.job, "left": left, "note": erasure.note})
        if output is Output.JSONL:
            document(output, "", rows)
            return
        kinds = {"lock": "locks", "erasure": "erasures"}
        by_kind: dict[str, list[dict[str, Any]]] = {"locks": [], "erasures": []}
        for row in rows:
            by_kind[kinds[row.pop("kind")]].append(row)
        document(output, "locks", by_kind["locks"], pipeline=pipeline.name, erasures=by_kind["erasures"])
        return
    for lock in locks:
        _show(lock)
    for erasure in erasures:
        typer.echo(f"{erasure.job}: {erasure.left or erasure.note}")


def _plain(lock: LockStatus) -> dict[str, Any]:
    return dataclasses.asdict(lock)


def _show(lock: LockStatus) -> None:
    styled(f"Lock {lock.lock}" + (f", epoch {lock.epoch}" if lock.epoch else ", no turn yet"), "bold")
    held = lock.holder
    if held is None:
        typer.echo("  nobody has the turn")
    else:
        batch = "a sweep" if held.batch is None else f"batch {held.batch}"
        typer.echo(
            f"  {held.job} has the turn (epoch {held.epoch}, {batch}) since {words.clock(held.since_ms, has_day=True)}, "
            f"pid {held.pid} on {held.host}"
        )
        if not held.is_alive:
            typer.echo("  its process is gone: the next job that asks closes the turn, and nothing is lost")
    for place, waiting in enumerate(lock.queue, 1):
        asked = words.clock(waiting.asked_at_ms, has_day=True)
        typer.echo(f"  {place}. {waiting.job}, asked {asked}: {waiting.reason}")
    for token_id, epoch in lock.in_doubt:
        typer.echo(f"  in doubt: {token_id} of epoch {epoch}; the next turn refuses what may still come of it")
    rows = []
    for job in lock.jobs:
        idle = words.NOTHING
        if job.idle_since_ms is not None:
            at = ", ".join(str(version) for version in job.idle_at.values())
            idle = words.clock(job.idle_since_ms, has_day=True) + (f" (version {at})" if at else "")
        lost = (
            ""
            if job.lost is None
            else f"epoch {job.lost[0]}, " + ("sweep" if job.lost[1] is None else f"batch {job.lost[1]}")
        )
        last = words.NOTHING if job.last_epoch is None else f"epoch {job.last_epoch}, "
        if job.completed_at_ms is not None:
            last += words.clock(job.completed_at_ms, has_day=True)
        rows.append(
            (
                job.job,
                "running" if job.is_alive else words.NOTHING,
                job.rule,
                str(job.turns),
                last,
                idle,
                lost or words.NOTHING,
            )
        )
    table(("job", "now", "order", "turns", "last completed", "idle since", "lost turn"), rows)
