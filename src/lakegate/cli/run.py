"""lakegate run: runs the streams of the file, in turns."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from lakegate import settings
from lakegate.cli.app import Output, app
from lakegate.cli.dry_run import dry_run
from lakegate.cli.jars import fetch_progress
from lakegate.cli.output import say
from lakegate.cli.processes import JVM_ENDED, SYNC_REPORT, Processes
from lakegate.cli.progress import Printer
from lakegate.errors import INTERRUPTED_EXIT_CODE, InvalidRequest, JvmEnded, combined_exit_code
from lakegate.telemetry.events import FORMAT, Noticed, StreamLate
from lakegate.telemetry.hook_messages import tallied
from lakegate.telemetry.log_format import JsonFormatter

if TYPE_CHECKING:
    from lakegate.config import Pipeline
    from lakegate.telemetry.hooks import Hooks
    from lakegate.turns.lateness import LateStreams


@app.command("run")
def run_command(
    context: typer.Context,
    streams: list[str] | None = typer.Argument(
        None, metavar="[STREAM]...", help="Streams to run, and syncs. Default: all."
    ),
    once: bool = typer.Option(False, "--once", help="One turn per stream, with the current data of its source."),
    until_idle: bool = typer.Option(False, "--until-idle", help="Repeat until nothing is left to do."),
    is_dry: bool = typer.Option(False, "--dry-run", help="Print what would be read and written; run nothing."),
    together: bool = typer.Option(False, "--together", help="Several streams as threads of one Spark driver."),
    new_checkpoint: list[str] | None = typer.Option(
        None,
        "--new-checkpoint",
        metavar="JOB",
        help="This job's checkpoint is new on purpose: its source is read again.",
    ),
    spec: str | None = typer.Option(
        None, "--spec", metavar="FILE", help="The pipeline: a file, or module:name. Default: lakegate.yml."
    ),
    output: Output = typer.Option(Output.TEXT, "--output", help="How to print the events."),
    among: list[str] | None = typer.Option(None, "--among", hidden=True),
    idle_run: str | None = typer.Option(None, "--idle-run", hidden=True),
    is_child: bool = typer.Option(False, "--child", hidden=True),
) -> None:
    """Run the streams: each at its pace, or once, or until nothing is left to do; and the syncs of the file.

    Several streams run as one process each. A stream that fails ends the others after their turn. Syncs run concurrently with
    them; with --once and --until-idle, after them.
    """
    if once and until_idle:
        raise InvalidRequest("--once and --until-idle exclude each other; nothing was run", advice="Give one of them")
    if settings.log_format() == "json":
        _log_as_json()
    if among and idle_run is None:
        raise InvalidRequest("--among needs --idle-run, the same for all of them; nothing was run")
    pipeline = settings.load_pipeline(spec)
    if not pipeline.streams:
        raise InvalidRequest("the file has no stream; nothing was run", advice="Its databases: lakegate sync run")
    known_streams, known_syncs = [one.name for one in pipeline.streams], [one.name for one in pipeline.syncs]
    chosen = streams or [*known_streams, *known_syncs]
    names = [name for name in chosen if name in known_streams]
    syncs = [name for name in dict.fromkeys(chosen) if name in known_syncs]
    unknown = [name for name in chosen if name not in known_streams and name not in known_syncs]
    unknown += [name for name in new_checkpoint or () if name not in known_streams]
    if unknown:
        known = ", ".join([*known_streams, *known_syncs])
        raise InvalidRequest(f"there is no stream {unknown[0]!r}; nothing was run", advice=f"The streams are: {known}")
    if is_dry:
        dry_run(pipeline, list(dict.fromkeys(names)), syncs, output)
        return
    from lakegate.config.lineage import lineage_of
    from lakegate.telemetry.hooks import Hooks
    from lakegate.turns.lateness import LateStreams

    printer = Printer(output)
    hooks = None
    if not is_child:  # a child's events are passed on by its parent
        report = partial(_report, printer)
        hooks = Hooks(pipeline.name, pipeline.hooks, report=report, lineage=lineage_of(pipeline))
        context.call_on_close(hooks.close)
    watch = _Watch(printer, hooks, LateStreams(pipeline, names), pipeline.coordinator.url)
    pace = "once" if once else "until_idle" if until_idle else "paced"
    beside = syncs if pace == "paced" else []
    if (len(names) > 1 and not together) or beside:
        codes, reports = _as_processes(pipeline, names, beside, pace, new_checkpoint or [], spec, watch)
    elif not names:
        codes, reports = [], []
    else:
        arguments = _arguments(names, pace, spec)
        for name in among or ():
            arguments += ["--among", name]
        arguments += ["--idle-run", idle_run] if idle_run else []
        for name in new_checkpoint or ():
            arguments += ["--new-checkpoint", name]
        try:
            codes, reports = (
                [],
                _here(pipeline, names, pace, among or names, idle_run, new_checkpoint or [], watch, is_child=is_child),
            )
        except JvmEnded as ended:
            if is_child:
                printer.show({"format": FORMAT, "event": JVM_ENDED, "job": ", ".join(names)})
                raise typer.Exit(ended.exit_code) from ended  # the parent process reports it
            # This process has no JVM any more, so it starts a new driver.
            codes, reports = _run_processes({", ".join(names): arguments}, watch, ended=str(ended.summary))
    if syncs and not beside and not combined_exit_code(codes):
        more, reports_more = _run_processes(_sync_commands(syncs, pace, spec), watch)
        codes, reports = codes + more, reports + reports_more
    _show_reports(reports, output)
    if combined_exit_code(codes):
        raise typer.Exit(combined_exit_code(codes))


def _report(printer: Printer, text: str) -> None:
    printer.emit(Noticed(job=None, text=text))


@dataclass(frozen=True, slots=True)
class _Watch:
    """The receivers of the run's events: the printer, and the hooks unless this is a child process."""

    printer: Printer
    hooks: Hooks | None
    streams: LateStreams
    url: str
    """The coordinator."""

    def show(self, data: dict[str, Any]) -> None:
        """Takes an event of a child process."""
        self.printer.show(data)
        if self.hooks is not None:
            self.hooks.feed(data)

    def late(self) -> list[StreamLate]:
        """Returns the streams whose lateness has changed; for a process that runs no stream itself."""
        from lakegate.ops.inspection import existing_store

        with existing_store(self.url) as store:
            return [] if store is None else self.streams.look(store, time.time_ns() // 1_000_000)


def _log_as_json() -> None:
    """Formats every log line of this process, including the user's own, as JSON on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    # py4j logs each exception of a user's function with its text, which may repeat values; the run itself ends with it.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _arguments(names: list[str], pace: str, spec: str | None) -> list[str]:
    """Returns the arguments that run these streams in a child process."""
    file = settings.spec_argument(spec)
    paced = [] if pace == "paced" else [f"--{pace.replace('_', '-')}"]
    together = ["--together"] if len(names) > 1 else []
    return ["run", *names, *together, "--spec", file, "--output", "jsonl", "--child", *paced]


def _sync_commands(names: list[str], pace: str, spec: str | None) -> dict[str, list[str]]:
    more = [] if pace == "paced" else [f"--{pace.replace('_', '-')}"]
    where = ["--spec", settings.spec_argument(spec), "--output", "jsonl", "--child", *more]
    return {name: ["sync", "run", name, *where] for name in names}


def _as_processes(
    pipeline: Pipeline,
    names: list[str],
    syncs: list[str],
    pace: str,
    new: list[str],
    spec: str | None,
    watch: _Watch,
) -> tuple[list[int], list[dict[str, Any]]]:
    _fetch_jars(pipeline)  # once, with its progress, and not in every process
    if names and sys.stderr.isatty():
        say(f"Starting a Spark driver for each of: {', '.join(names)}", err=True)
    commands, idle_run = {}, str(uuid.uuid4())
    for name in names:
        arguments = _arguments([name], pace, spec)
        arguments += [*(part for other in names for part in ("--among", other)), "--idle-run", idle_run]
        arguments += ["--new-checkpoint", name] if name in new else []
        commands[name] = arguments
    return _run_processes({**commands, **_sync_commands(syncs, pace, spec)}, watch)


def _run_processes(
    commands: dict[str, list[str]], watch: _Watch, *, ended: str | None = None
) -> tuple[list[int], list[dict[str, Any]]]:
    """Runs the commands as processes; `ended`: why the process that they replace ended."""
    processes = Processes(commands, show=watch.show, ended=ended)
    with nullcontext() if watch.hooks is None else watch.hooks.watching(watch.late):
        result = processes.run()
    if signal.SIGINT in processes.signals:
        raise KeyboardInterrupt
    return result


def _fetch_jars(pipeline: Pipeline) -> None:
    from lakegate.config import KafkaSource
    from lakegate.spark.jars import fetch, missing

    wanted = ["delta", *(["kafka"] if any(isinstance(s.source, KafkaSource) for s in pipeline.streams) else [])]
    sources = settings.jar_sources()
    lacking = missing(wanted, sources=sources)
    if lacking:
        with fetch_progress(lacking) as progress:
            fetch(wanted, sources=sources, progress=progress)


def _here(
    pipeline: Pipeline,
    names: list[str],
    pace: str,
    among: list[str],
    idle_run: str | None,
    new: list[str],
    watch: _Watch,
    *,
    is_child: bool,
) -> list[dict[str, Any]]:
    from lakegate.pipeline import Pace, PipelineRun

    _fetch_jars(pipeline)
    # The run ends with py4j's errors, and reports them; py4j logs some of them under its name, some under none.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    run = PipelineRun(
        pipeline,
        names,
        among=among,
        idle_run=idle_run,
        new_checkpoints=new,
        watchers=[watch.printer],
        hooks=watch.hooks,
    )
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if signals:  # the second signal: at once; the batch runs again
            os._exit(INTERRUPTED_EXIT_CODE)
        signals.append(number)
        # In a thread: the handler runs in the middle of a call into the JVM, which must not be entered twice.
        threading.Thread(target=run.stop, daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if is_child:
        threading.Thread(target=_stop_at_end_of_input, args=(run.stop,), daemon=True).start()
    paces: dict[str, Pace] = {"once": "once", "until_idle": "until_idle", "paced": "paced"}
    try:
        reports = run.run(paces[pace])
    except JvmEnded as ended:
        if signals:  # it ends as requested
            raise typer.Exit(INTERRUPTED_EXIT_CODE if signal.SIGINT in signals else ended.exit_code) from ended
        raise
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    return [{"format": FORMAT, "event": "RunReport", **dataclasses.asdict(report)} for report in reports.values()]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def _stop_at_end_of_input(stop: Any) -> None:
    sys.stdin.read()
    stop()


def _show_reports(reports: list[dict[str, Any]], output: Output) -> None:
    if output is Output.JSON:
        syncs = [report for report in reports if report["event"] == SYNC_REPORT]
        streams = [report for report in reports if report["event"] != SYNC_REPORT]
        typer.echo(json.dumps({"format": FORMAT, "streams": streams, **({"syncs": syncs} if syncs else {})}))
    elif output is Output.JSONL:
        for report in reports:
            typer.echo(json.dumps(report))
    else:
        for report in reports:
            if report["event"] == SYNC_REPORT:
                say(
                    f"{report['sync']}: {report['batches']} batches, {report['changes']} changes, {report['rows']} rows applied"
                )
                continue
            waited_s = report["waited_ms"] / 1000
            unmet = f", not met: {tallied(report['unmet'])}" if report["unmet"] else ""
            say(
                f"{report['job']}: {report['turns']} turns, {report['batches']} batches, {report['rows']} rows written, "
                f"waited {waited_s:.1f} s{unmet}"
            )
