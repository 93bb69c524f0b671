"""lakegate status: the holder of the turn, the waiting jobs with reasons, the state of each job, and late streams."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import OUTPUT, SPEC, delay_words, document, say, styled, table
from lakegate.errors import InvalidRequest, TurnNotGranted
from lakegate.report import words

if TYPE_CHECKING:
    from lakegate.config import Pipeline
    from lakegate.ops.inspection import DelayStatus, ErasureStatus, KeptStatus, LagStatus, SourceStatus
    from lakegate.ops.kafka_lag import TopicLag
    from lakegate.ops.status import JobStatus, LockStatus
    from lakegate.ops.stored_requests import StateCount


@app.command("status")
def status_command(
    watch: bool = typer.Option(False, "--watch", help="Repeat until Ctrl-C."),
    interval: float = typer.Option(2.0, "--interval", min=0.1, metavar="SECONDS", help="Interval for --watch."),
    fail_if_late: bool = typer.Option(
        False, "--fail-if-late", help="End with status 3 if a stream has missed a turn: for probes."
    ),
    web: bool = typer.Option(False, "--web", help="Serve it as a page that updates itself, until Ctrl-C."),
    port: int = typer.Option(0, "--port", min=0, max=65535, help="The port for --web. Default: a free one."),
    address: str = typer.Option("127.0.0.1", "--address", metavar="HOST", help="The address for --web."),
    no_token: bool = typer.Option(
        False, "--no-token", help="With --web: an address without a secret, for everybody who reaches the port."
    ),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Show each lock: its holder, the waiting jobs with reasons, the state of each job, overdue streams, stored requests.

    For streams that read Kafka: how many records of each topic are left to read, if the broker answers. For streams that read
    files: files that were not read, or have changed since they were read, and why. For syncs: the delay from the commit at the
    source to the commit in the target.

    A stream is late when its last turn was completed more than twice `every` ago, and it is neither idle nor paused.

    With --web: prints the address of a page with all of this, a timeline, and the last errors. The page can only read.
    """
    if web and (watch or fail_if_late or output is not Output.TEXT):
        raise InvalidRequest("--web excludes --watch, --fail-if-late and --output; nothing was done")
    pipeline = settings.load_pipeline(spec)
    if web:
        from lakegate.cli.live import serve

        serve(pipeline, address=address, port=port, has_token=not no_token)
        return
    while True:
        late = _once(pipeline, output, is_watched=watch)
        if not watch:
            break
        time.sleep(interval)
    if fail_if_late and late:
        raise TurnNotGranted(
            f"late: {', '.join(f'{job.job} by {words.span(job.overdue_ms)}' for job in late)}",
            advice="See why with: lakegate status",
        )


def _once(pipeline: Pipeline, output: Output, *, is_watched: bool) -> list[JobStatus]:
    """Prints the current state; returns the jobs that are late."""
    from lakegate.ops.inspection import delays_of, erasures_of, kept_of, lags_of, sources_of, status_of

    locks, erasures, kept, lags = status_of(pipeline), erasures_of(pipeline), kept_of(pipeline), lags_of(pipeline)
    sources, delays = sources_of(pipeline), delays_of(pipeline)
    late = [job for lock in locks for job in lock.jobs if job.is_late]
    if output is not Output.TEXT:
        _document(pipeline, output, locks, erasures, kept, lags, sources, delays)
        return late
    if is_watched:
        if sys.stdout.isatty():
            typer.echo("\x1b[2J\x1b[H", nl=False)
        say(f"{pipeline.name} at {words.clock(time.time_ns() // 1_000_000, has_day=True)} UTC")
    for lock in locks:
        _show(lock)
    for lag in lags:
        if lag.note is not None:
            say(f"{lag.job}: how far it is behind is unknown: {lag.note}")
        for topic in lag.topics:
            say(f"{lag.job}: {_lag_line(topic)}")
    for source in sources:
        for one in [*source.not_read, *([source.note] if source.note else [])]:
            say(f"{source.job}: {one}")
        for left in source.left_out:
            say(f"{source.job}: {left.text} ({words.clock(left.at_ms, has_day=True)})")
    for erasure in erasures:
        say(f"{erasure.job}: {erasure.left or erasure.note}")
    for one in kept:
        if one.note is not None:
            say(f"{one.job}: {one.note}")
        for state in one.kept:
            say(f"{one.job}: {_kept_line(state)}")
    for sync in delays:
        said = f"its delay is unknown: {sync.note}" if sync.delay is None else delay_words(sync.delay)
        say(f"{sync.sync}: {said}")
    return late


def _lag_line(topic: TopicLag) -> str:
    line = f"{words.counted(topic.behind, 'record')} of {topic.topic} to read ({words.counted(topic.partitions, 'partition')})"
    return line + (f"; {topic.deleted:,} were deleted unread" if topic.deleted else "")


def _kept_line(state: StateCount) -> str:
    since = words.clock(state.oldest_ms, has_day=True)
    ages = [f"{count:,} {'older' if age == 'older' else f'under {age}'}" for age, count in state.ages.items() if count]
    return f"{words.counted(state.requests, 'request')} {state.state}, the oldest since {since} ({', '.join(ages)})"


def _document(
    pipeline: Pipeline,
    output: Output,
    locks: list[LockStatus],
    erasures: list[ErasureStatus],
    kept: list[KeptStatus],
    lags: list[LagStatus],
    sources: list[SourceStatus],
    delays: list[DelayStatus],
) -> None:
    rows: list[dict[str, Any]] = [{"kind": "lock", **dataclasses.asdict(lock)} for lock in locks]
    for erasure in erasures:
        left = None
        if erasure.left is not None:
            left = {**dataclasses.asdict(erasure.left), "files": erasure.left.files}
        rows.append({"kind": "erasure", "job": erasure.job, "left": left, "note": erasure.note})
    rows += [{"kind": "requests", **dataclasses.asdict(one)} for one in kept]
    rows += [{"kind": "lag", **dataclasses.asdict(one)} for one in lags]
    rows += [
        {
            "kind": "source",
            "job": source.job,
            "not_read": [{"reason": one.reason, "count": len(one.files), "text": str(one)} for one in source.not_read],
            "left_out": [{"text": one.text, "at_ms": one.at_ms} for one in source.left_out],
            "note": source.note,
        }
        for source in sources
    ]
    rows += [{"kind": "sync", **dataclasses.asdict(one)} for one in delays]
    if output is Output.JSONL:
        document(output, "", rows)
        return
    kinds = {
        "lock": "locks",
        "erasure": "erasures",
        "requests": "requests",
        "lag": "lags",
        "source": "sources",
        "sync": "syncs",
    }
    by_kind: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds.values()}
    for row in rows:
        by_kind[kinds[row.pop("kind")]].append(row)
    document(
        output,
        "locks",
        by_kind["locks"],
        pipeline=pipeline.name,
        erasures=by_kind["erasures"],
        requests=by_kind["requests"],
        lags=by_kind["lags"],
        sources=by_kind["sources"],
        syncs=by_kind["syncs"],
    )


def _show(lock: LockStatus) -> None:
    styled(f"Lock {lock.lock}" + (f", epoch {lock.epoch}" if lock.epoch else ", no turn yet"), "bold")
    held = lock.holder
    if held is None:
        say("  nobody has the turn")
    else:
        batch = "a sweep" if held.batch is None else f"batch {held.batch}"
        say(
            f"  {held.job} has the turn (epoch {held.epoch}, {batch}) since {words.clock(held.since_ms, has_day=True)}, "
            f"pid {held.pid} on {held.host}"
        )
        if not held.is_alive:
            say("  its process is gone: the next job that asks closes the turn, and nothing is lost")
    for place, waiting in enumerate(lock.queue, 1):
        asked = words.clock(waiting.asked_at_ms, has_day=True)
        say(f"  {place}. {waiting.job}, asked {asked}: {waiting.reason}")
    for token_id, epoch in lock.in_doubt:
        say(f"  in doubt: {token_id} of epoch {epoch}; the next turn refuses what may still come of it")
    for job in lock.jobs:
        if job.paused is not None:
            say(f"  {job.job} is {job.paused} (since {words.clock(job.paused_since_ms, has_day=True)})")
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
                "paused" if job.paused else "running" if job.is_alive else words.NOTHING,
                job.rule + (f", priority {job.priority}" if job.priority else ""),
                str(job.turns),
                last,
                idle,
                lost or words.NOTHING,
                (words.span(job.overdue_ms) + (" LATE" if job.is_late else "")) if job.overdue_ms else words.NOTHING,
            )
        )
    table(("job", "now", "order", "turns", "last completed", "idle since", "lost turn", "overdue"), rows)
