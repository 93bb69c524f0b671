"""lakegate sync: keeps databases in sync with a source of changes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.output import OUTPUT, SPEC, delay_words, document, say, styled, table
from lakegate.errors import INTERRUPTED_EXIT_CODE, InvalidRequest, LakegateError, Unavailable, combined_exit_code
from lakegate.report import words
from lakegate.telemetry.events import to_json

if TYPE_CHECKING:
    from lakegate.config import Pipeline
    from lakegate.syncs.api import SyncReport
    from lakegate.syncs.behind import BehindLimits
    from lakegate.syncs.preview import NextBatch
    from lakegate.syncs.runner import AppliedBatch
    from lakegate.syncs.session import Carrier, SyncSession, SyncStatus
    from lakegate.telemetry.hooks import Hooks

sync = typer.Typer(help="Keep databases in sync with a source of changes.", no_args_is_help=True)
app.add_typer(sync, name="sync")

NAME = typer.Argument(None, metavar="[NAME]", help="A sync of the file. Default: all.")
TROUBLES_SHOWN = 20


@sync.command("plan")
def plan_command(name: str | None = NAME, spec: str | None = SPEC, output: Output = OUTPUT) -> None:
    """Explain the next batch without applying it: its rows, which row releases a value before another, and serial parts.

    Writes nothing to the target except temporary tables, which end with the command.
    """
    rows = []
    sessions = sessions_of(spec, name)
    for session in sessions:
        with named(session, sessions), session:
            batch = session.plan()
        about = None if batch is None else dataclasses.asdict(batch)
        rows.append({"sync": session.name, "batch": about, "caveat": session.caveat})
        if output is Output.TEXT:
            _show_plan(session.name, batch)
            if session.caveat is not None:
                say(f"  source        {session.caveat}")
    if output is not Output.TEXT:
        document(output, "syncs", rows)


@sync.command("run")
def run_command(
    context: typer.Context,
    name: str | None = NAME,
    once: bool = typer.Option(False, "--once", help="Apply the current changes of the source, and end."),
    until_idle: bool = typer.Option(False, "--until-idle", help="Repeat until nothing is left to do, then end."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
    is_child: bool = typer.Option(False, "--child", hidden=True),
) -> None:
    """Apply changes, batch by batch, from the target's position. Without --once or --until-idle: follow the source,
    which is asked for more at the interval `poll`.

    SIGINT or SIGTERM ends it after the current batch; a second signal at once. In both cases no row is lost or duplicated.
    """
    if once and until_idle:
        raise InvalidRequest("--once and --until-idle exclude each other; nothing was run", advice="Give one of them")
    pipeline = settings.load_pipeline(spec)
    sessions = _sessions(pipeline, name)
    stop, signals = threading.Event(), list[int]()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if signals:  # the second signal: at once; the batch is applied again
            os._exit(INTERRUPTED_EXIT_CODE)
        signals.append(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    if is_child:
        threading.Thread(target=_stop_at_end_of_input, args=(stop,), daemon=True).start()
    from lakegate.config.lineage import lineage_of
    from lakegate.syncs.api import SyncReport
    from lakegate.telemetry.hooks import Hooks, wanted

    counts = {session.name: SyncReport(sync=session.name) for session in sessions}
    hooks = None
    if not is_child:  # a child's events are passed on by its parent
        report = partial(say, err=True)
        hooks = Hooks(pipeline.name, pipeline.hooks, report=report, lineage=lineage_of(pipeline))
        context.call_on_close(hooks.close)
    watch = _Watch(output, hooks, {hook.behind_after_ms for hook in wanted(pipeline.hooks, "sync_behind")})
    try:
        _carry(sessions, counts, stop, watch, once=once, until_idle=until_idle)
        for session in sessions:
            with contextlib.suppress(LakegateError):  # a target that is away now has no figures
                counts[session.name].delay = session.delay()
    finally:
        for session in sessions:
            session.close()
        _show_counts(counts, output)
    if signal.SIGINT in signals:
        raise KeyboardInterrupt


def _stop_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


@sync.command("resync")
def resync_command(
    name: str = typer.Argument(..., metavar="NAME", help="A sync of the file, whose source is a table or PostgreSQL."),
    spec: str | None = SPEC,
    output: Output = OUTPUT,
) -> None:
    """Make the target equal to the source's current state, and go on from there.

    From a table in one transaction, in which rows that it does not have are deleted. From PostgreSQL, the target's tables are
    emptied and loaded. For a feed or a slot that is gone, a recreated table, or a target with rows.
    """
    from lakegate.syncs.api import SyncReport

    (session,) = sessions_of(spec, name)
    count = SyncReport(sync=name)
    with session:
        for applied in session.resync():
            count.add(applied)
    _show_counts({name: count}, output)


@sync.command("status")
def status_command(spec: str | None = SPEC, output: Output = OUTPUT) -> None:
    """Show how far each database is: position, last batch, writer epoch, quarantined rows, delay, and the reason for waiting.

    The delay is the time from the commit of a change at the source to its commit in the target: median and 99th percentile of
    the changes of the last 15 minutes; and now, the age of the oldest change that the target does not have.
    """
    from lakegate.syncs.plan.delay import SyncDelay

    rows: list[dict[str, Any]] = []
    errors: dict[str, LakegateError] = {}
    for session in sessions_of(spec, None):
        try:
            with session:
                rows.append({**_facts(session.standing()), "error": None})
        except LakegateError as error:
            errors[session.name] = error
            rows.append({"sync": session.name, "stream": session.stream, "error": error.message})
    if output is not Output.TEXT:
        document(output, "syncs", rows)
    else:
        cells = [
            (row["sync"], "no answer", *[words.NOTHING] * 4)
            if row["error"] is not None
            else (
                row["sync"],
                _state(row),
                words.NOTHING if row["position"] is None else str(row["position"]),
                str(row["last_batch"]),
                str(row["epoch"]),
                str(row["dead_rows"]),
            )
            for row in rows
        ]
        table(("sync", "state", "position", "last batch", "epoch", "quarantined"), cells)
        for row in rows:
            if "waits_for" in row:
                since = words.clock(row["waits_since_ms"], has_day=True)
                say(f"{row['sync']} waits for {row['waits_for']} (since {since})")
        for row in rows:
            if row["error"] is None:
                say(f"{row['sync']}: {delay_words(SyncDelay(**row['delay']))}")
    if errors:
        worst = combined_exit_code([error.exit_code for error in errors.values()])
        first = next(error for error in errors.values() if error.exit_code == worst)
        for name, other in errors.items():
            if other is not first:
                say(f"{name}: {other}", err=True)
        raise first


def _facts(one: SyncStatus | SyncReport) -> dict[str, Any]:
    """Returns the facts of a document; the reason for waiting is included only if the sync waits."""
    facts = dataclasses.asdict(one)
    return {name: fact for name, fact in facts.items() if fact is not None or not name.startswith("waits_")}


def _state(row: dict[str, Any]) -> str:
    if row["pending"] is not None:
        return "begun"
    if "waits_for" in row:
        return "waiting"
    if row["position"] is not None:
        return "complete"
    return "loading" if row["last_batch"] else "new"


def sessions_of(spec: str | None, name: str | None) -> list[SyncSession]:
    """Returns the syncs of the file, or the one of this name, not open yet."""
    return _sessions(settings.load_pipeline(spec), name)


def _sessions(pipeline: Pipeline, name: str | None) -> list[SyncSession]:
    from lakegate.syncs.api import syncs_of
    from lakegate.syncs.session import SyncSession

    return [SyncSession(pipeline, one) for one in syncs_of(pipeline, name)]


@contextlib.contextmanager
def named(session: SyncSession, sessions: list[SyncSession]) -> Iterator[None]:
    """Prints the name of the sync that failed, if there are several."""
    try:
        yield
    except LakegateError:
        if len(sessions) > 1:
            say(f"{session.name}: ended by an error", err=True)
        raise


def _carry(
    sessions: list[SyncSession],
    counts: dict[str, SyncReport],
    stop: threading.Event,
    watch: _Watch,
    *,
    once: bool,
    until_idle: bool,
) -> None:
    from lakegate.syncs.session import WAIT_S, Carrier

    is_continuous = not (once or until_idle)
    carriers = {
        session.name: (
            session,
            Carrier(session, is_patient_from_the_start=is_continuous, waits=partial(_show_wait, session, watch.output)),
        )
        for session in sessions
    }
    left = dict(carriers)
    while left and not stop.is_set():
        applied = 0
        for name, (session, carrier) in list(left.items()):
            with named(session, sessions):
                changed = _one_pass(name, carrier, counts[name], stop, watch)
            applied += changed
            if once and not carrier.is_waiting:
                del left[name]  # each has its own pass
        is_waiting = any(carrier.is_waiting for _, carrier in left.values())
        if until_idle and not applied and not is_waiting:
            return
        if is_waiting and not applied:
            stop.wait(WAIT_S)
        elif left and not applied:
            wait_for_news([carrier for _, carrier in left.values()], stop)


class Follower(Protocol):
    """A sync whose source can be asked for news; see `Carrier`."""

    @property
    def poll_s(self) -> float: ...

    def has_news(self) -> bool: ...


def wait_for_news(carriers: Sequence[Follower], stop: threading.Event) -> None:
    """Waits until a source has something new: that of the shortest interval is asked again and again, the others by a pass."""
    from lakegate.syncs.session import POLL_S

    poll_s = min(carrier.poll_s for carrier in carriers)
    until_s, took_s = time.monotonic() + max(poll_s, POLL_S), 0.0
    # Asking takes at most a tenth of the time, however many files must be listed.
    while not stop.wait(max(poll_s, 9 * took_s)) and (begun := time.monotonic()) < until_s:
        if any(carrier.has_news() for carrier in carriers if carrier.poll_s < POLL_S):
            return
        took_s = time.monotonic() - begun


def _one_pass(name: str, carrier: Carrier, count: SyncReport, stop: threading.Event, watch: _Watch) -> int:
    changed = 0
    with contextlib.closing(carrier.carry()) as batches:
        while not stop.is_set():
            applied = next(batches, None)
            if applied is None:
                break
            changed += applied.changes > 0  # otherwise the source advanced without a change: it is idle
            count.add(applied)
            watch.applied(name, applied)
    watch.passed(name, is_level=not (changed or carrier.is_waiting or count.waits_for or stop.is_set()))
    return changed


def _show_wait(session: SyncSession, output: Output, error: Unavailable) -> None:
    if output is Output.JSONL:
        row = {"event": "SyncWaits", "sync": session.name, "patience_s": session.patience_s, "error": error.message}
        document(output, "", [row])
    else:
        say(f"{session.name}: waiting up to {session.patience_s:.0f} s, and retrying: {error.message}", err=True)


class _Watch:
    """Prints what the syncs do, and passes it to the hooks unless this is a child process."""

    def __init__(self, output: Output, hooks: Hooks | None, limits_ms: set[int]) -> None:
        self.output, self._hooks, self._limits_ms = output, hooks, limits_ms
        self._behind: dict[str, BehindLimits] = {}

    def applied(self, name: str, applied: AppliedBatch) -> None:
        complete = applied.complete
        row = {"event": "BatchApplied", "sync": name, "batch": applied.batch, "changes": applied.changes}
        row |= {"position": applied.through}
        if complete is not None:
            facts = {one.name: getattr(complete, one.name) for one in dataclasses.fields(complete)}
            row |= {**facts, "dead": len(complete.dead)}
        self._pass_on(row)
        if self.output is Output.TEXT:
            what = "a definition was changed"
            if complete is not None:
                what = f"{words.counted(applied.changes, 'change')}, {words.counted(complete.rows, 'row')}"
                what += f", {words.counted(complete.edges, 'edge')}" if complete.edges else ""
                what += f", {len(complete.dead)} quarantined" if complete.dead else ""
            say(f"{name}: batch {applied.batch}, {what}, position {applied.through}", err=True)
        for event in self._limits(name).applied(applied, now_ms()):
            self._pass_on(to_json(event))

    def passed(self, name: str, *, is_level: bool) -> None:
        """Takes the end of a pass: is the target level with the source?"""
        for event in self._limits(name).passed(now_ms(), is_level=is_level):
            self._pass_on(to_json(event))

    def _limits(self, name: str) -> BehindLimits:
        from lakegate.syncs.behind import BehindLimits

        if name not in self._behind:
            self._behind[name] = BehindLimits(name, self._limits_ms, now_ms())
        return self._behind[name]

    def _pass_on(self, row: dict[str, Any]) -> None:
        if self.output is Output.JSONL:
            document(self.output, "", [row])
        if self._hooks is not None:
            self._hooks.feed(row)


def now_ms() -> int:
    """Returns the wall clock."""
    return time.time_ns() // 1_000_000


def _show_counts(counts: dict[str, SyncReport], output: Output) -> None:
    rows = [_facts(count) for count in counts.values()]
    if output is Output.JSON:
        document(output, "syncs", rows)
    elif output is Output.JSONL:
        document(output, "", [{"event": "SyncReport", **row} for row in rows])
    else:
        for count in counts.values():
            apart = f", {count.set_apart} quarantined" if count.set_apart else ""
            done = f"{words.counted(count.batches, 'batch', 'batches')}, {words.counted(count.changes, 'change')}"
            waits = f"; it waits for {count.waits_for}" if count.waits_for else ""
            say(f"{count.sync}: {done}, {words.counted(count.rows, 'row')} applied{apart}{waits}")


def _show_plan(name: str, batch: NextBatch | None) -> None:
    if batch is None:
        styled(f"{name}: nothing to apply", "bold")
        return
    begun = "; it was begun before" if batch.is_begun else ""
    styled(
        f"{name}: batch {batch.batch}, {words.counted(batch.changes, 'change')} up to position {batch.through}{begun}",
        "bold",
    )
    if batch.statement is not None:
        say(f"  statement     {' '.join(batch.statement.split())}")
    else:
        by_table = ", ".join(f"{count} in {name}" for name, count in batch.rows.items())
        say(f"  rows          {sum(batch.rows.values())}: {by_table}")
        say(f"  edges         {batch.edges}")
        say(f"  components    {batch.components}, the largest of {words.counted(batch.largest, 'row')}")
        say(f"  transactions  {batch.transactions}")
    for reason in batch.serial:
        say(f"  serial        {reason}")
    for one in batch.troubles[:TROUBLES_SHOWN]:
        say(f"  trouble       {one.table} {one.key} (position {one.position}): {one.reason}")
    if len(batch.troubles) > TROUBLES_SHOWN:
        say(f"  trouble       and {len(batch.troubles) - TROUBLES_SHOWN} more")
