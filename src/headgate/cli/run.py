"""headgate run: the streams of the file, in turns."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import typer

from headgate import settings
from headgate.cli.app import Output, app
from headgate.cli.jars import fetch_progress
from headgate.cli.processes import Processes
from headgate.cli.progress import FORMAT, Printer
from headgate.core.spec import KafkaSource, Pipeline
from headgate.errors import INTERRUPTED_EXIT_CODE, InvalidRequest, combined_exit_code
from headgate.logs import JsonFormatter


@app.command("run")
def run_command(
    streams: list[str] | None = typer.Argument(None, metavar="[STREAM]...", help="Streams to run. Default: all."),
    once: bool = typer.Option(False, "--once", help="One turn per stream, with what its source has now."),
    until_idle: bool = typer.Option(False, "--until-idle", help="Again until nothing is left to do."),
    together: bool = typer.Option(False, "--together", help="Several streams as threads of one Spark driver."),
    new_checkpoint: list[str] | None = typer.Option(
        None, "--new-checkpoint", metavar="JOB", help="This job's checkpoint is a new one: its source is read again."
    ),
    spec: str | None = typer.Option(None, "--spec", metavar="FILE", help="The pipeline. Default: headgate.yml."),
    output: Output = typer.Option(Output.TEXT, "--output", help="How to print what happens."),
    among: list[str] | None = typer.Option(None, "--among", hidden=True),
    is_child: bool = typer.Option(False, "--child", hidden=True),
) -> None:
    """Run the streams: each at its pace, or once, or until nothing is left to do.

    Several streams run as one process each. A stream that fails ends the others after their turn.
    """
    if once and until_idle:
        raise InvalidRequest(
            "--once and --until-idle are two different things; nothing was run", advice="Give one of them"
        )
    if settings.log_format() == "json":
        _log_as_json()
    pipeline = settings.load_pipeline(spec)
    if not pipeline.streams:
        raise InvalidRequest("the file has no stream; nothing was run", advice="Its databases: headgate sync run")
    names = streams or [stream.name for stream in pipeline.streams]
    unknown = [name for name in (*names, *(new_checkpoint or ())) if name not in {s.name for s in pipeline.streams}]
    if unknown:
        known = ", ".join(stream.name for stream in pipeline.streams)
        raise InvalidRequest(f"there is no stream {unknown[0]!r}; nothing was run", advice=f"The streams are: {known}")
    printer = Printer(output)
    pace = "once" if once else "until_idle" if until_idle else "paced"
    if len(names) > 1 and not together:
        codes, reports = _as_processes(pipeline, names, pace, new_checkpoint or [], spec, printer)
    else:
        codes, reports = (
            [],
            _here(pipeline, names, pace, among or names, new_checkpoint or [], printer, is_child=is_child),
        )
    _show_reports(reports, output)
    if combined_exit_code(codes):
        raise typer.Exit(combined_exit_code(codes))


def _log_as_json() -> None:
    """Every log line of this process, the user's own included, as JSON on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def _as_processes(
    pipeline: Pipeline, names: list[str], pace: str, new: list[str], spec: str | None, printer: Printer
) -> tuple[list[int], list[dict[str, Any]]]:
    _fetch_jars(pipeline)  # once, with its progress, and not by every process
    file = str(settings.find_spec(spec))
    commands = {}
    for name in names:
        arguments = ["run", name, "--spec", file, "--output", "jsonl", "--child"]
        arguments += [] if pace == "paced" else [f"--{pace.replace('_', '-')}"]
        arguments += [part for other in names for part in ("--among", other)]
        arguments += ["--new-checkpoint", name] if name in new else []
        commands[name] = arguments
    processes = Processes(commands, show=printer.show)
    result = processes.run()
    if signal.SIGINT in processes.signals:
        raise KeyboardInterrupt
    return result


def _fetch_jars(pipeline: Pipeline) -> None:
    from headgate.spark.jars import fetch, missing

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
    new: list[str],
    printer: Printer,
    *,
    is_child: bool,
) -> list[dict[str, Any]]:
    from headgate.api import Pace, PipelineRun

    _fetch_jars(pipeline)
    run = PipelineRun(pipeline, names, among=among, new_checkpoints=new, watchers=[printer])
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if signals:  # the second time: at once; the batch comes again
            os._exit(INTERRUPTED_EXIT_CODE)
        signals.append(number)
        # In a thread: the handler runs in the middle of a call into the JVM, which must not be entered twice.
        threading.Thread(target=run.stop, daemon=True).start()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if is_child:
        threading.Thread(target=_stop_at_end_of_input, args=(run.stop,), daemon=True).start()
    paces: dict[str, Pace] = {"once": "once", "until_idle": "until_idle", "paced": "paced"}
    reports = run.run(paces[pace])
    if signal.SIGINT in signals:
        raise KeyboardInterrupt
    return [{"format": FORMAT, "event": "RunReport", **dataclasses.asdict(report)} for report in reports.values()]


def _stop_at_end_of_input(stop: Any) -> None:
    sys.stdin.read()
    stop()


def _show_reports(reports: list[dict[str, Any]], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps({"format": FORMAT, "streams": reports}))
    elif output is Output.JSONL:
        for report in reports:
            typer.echo(json.dumps(report))
    else:
        for report in reports:
            waited_s = report["waited_ms"] / 1000
            typer.echo(
                f"{report['job']}: {report['turns']} turns, {report['batches']} batches, {report['rows']} rows written, "
                f"waited {waited_s:.1f} s"
            )
