"""The output of a run in progress: a line per event for people, a JSON line per event for machines."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, TextIO

from lakegate.cli.app import Output
from lakegate.redaction import printable
from lakegate.report import words
from lakegate.telemetry.events import (
    BatchWritten,
    Event,
    JobIdle,
    Noticed,
    StepRepeated,
    StepWritten,
    TurnEnded,
    TurnGranted,
    TurnWaits,
    to_json,
)
from lakegate.telemetry.hook_messages import tallied

STYLES = {"granted": "green", "waits": "yellow", "ended": "cyan", "trouble": "red", "quiet": "dim"}


def line_of(data: dict[str, Any]) -> tuple[str, str] | None:
    """Returns style and text of an event's line, from its JSON form; None for events that people need not see."""
    job = data.get("job") or ""
    match data["event"]:
        case TurnWaits.__name__:
            return "waits", f"{job}: {data['reason']}"
        case TurnGranted.__name__:
            after = f", after {data['predecessor']}" if data["predecessor"] else ""
            return "granted", f"{job}: turn {data['epoch']} granted after {_seconds(data['waited_ms'])}{after}"
        case StepWritten.__name__ if data["is_applied_before"]:
            return "quiet", f"{job}: batch {data['batch']} {data['step']}: in the table already, not written again"
        case StepWritten.__name__ if data["version"] is not None:
            place = data["table"].rstrip("/").rsplit("/", 1)[-1]
            return "quiet", f"{job}: batch {data['batch']} {data['step']} → {place} version {data['version']}"
        case BatchWritten.__name__ if data["dead_letters"] or data["dead_requests"] or data["unmet"]:
            count = data["dead_letters"] + data["dead_requests"]
            unmet = f"; not met: {tallied(data['unmet'])}" if data["unmet"] else ""
            return "trouble", f"{job}: batch {data['batch']}: {words.counted(count, 'record')} set aside{unmet}"
        case StepRepeated.__name__:
            return (
                "trouble",
                f"{job}: {data['step']} conflicted with a writer that takes no turns, runs again ({data['conflict']})",
            )
        case TurnEnded.__name__ if data["outcome"] == "gave_up":
            return "waits", f"{job}: no turn, tries again: {data['reason']}"
        case TurnEnded.__name__:
            held = _seconds(data["released_at_ms"] - (data["granted_at_ms"] or data["released_at_ms"]))
            reason = f": {data['reason']}" if data["reason"] else ""
            style = "ended" if data["outcome"] in ("completed", "replayed", "swept") else "trouble"
            return style, f"{job}: turn {data['epoch']} {data['outcome']} after {held}{reason}"
        case JobIdle.__name__:
            return "quiet", f"{job}: nothing left to do"
        case "BatchApplied":
            rows = f", {data['rows']} rows" if "rows" in data else ""
            return "quiet", f"{data['sync']}: batch {data['batch']}, {data['changes']} changes{rows} applied"
        case Noticed.__name__:
            return "waits", f"{job + ': ' if job else ''}{data['text']}"
        case _:
            return None


class Printer:
    """An `EventSink` that prints. Events of child processes come in as their JSON data."""

    def __init__(self, output: Output, stream: TextIO | None = None) -> None:
        self._output, self._lock = output, threading.Lock()
        self._stream = stream or (sys.stdout if output is Output.JSONL else sys.stderr)

    def emit(self, event: Event) -> None:
        self.show(to_json(event))

    def show(self, data: dict[str, Any]) -> None:
        """Prints one event; prints nothing where the only output is the final report."""
        if self._output is Output.JSON:
            return
        with self._lock:
            if self._output is Output.JSONL:
                print(json.dumps(data, separators=(",", ":")), file=self._stream, flush=True)
                return
            line = line_of(data)
            if line is not None:
                self._line(*line)

    def _line(self, style: str, text: str) -> None:
        stamp, text = time.strftime("%H:%M:%S"), printable(text)
        if not self._stream.isatty():
            print(f"{stamp} {text}", file=self._stream, flush=True)
            return
        from rich.console import Console
        from rich.text import Text

        Console(file=self._stream, soft_wrap=True).print(Text(f"{stamp} ", "dim"), Text(text, STYLES[style]), sep="")


class Bars:
    """The progress of the demo on a terminal: a bar for each stage, the time left, and the last event. A context manager."""

    def __init__(self, stages: Sequence[str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn

        # A copy of standard error: while Spark starts in this process, standard error goes to a log.
        self._screen = os.fdopen(os.dup(sys.stderr.fileno()), "w")
        console = Console(file=self._screen)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[rows]}"))
        self._bars = Progress(*columns, console=console)
        self._tasks = {stage: self._bars.add_task(stage, total=None, start=False, rows="") for stage in stages}
        self._left_s, self._noted_s, self._last = 0.0, time.monotonic(), ""
        self._live = Live(self, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Bars:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._screen.close()

    def show(self, data: dict[str, Any]) -> None:
        """Shows one event; safe to use from several threads."""
        if data["event"] != "DemoProgress":
            self._last = (line_of(data) or ("", self._last))[1]
            return
        before = list(self._tasks)[: list(self._tasks).index(data["stage"])]
        for stage in before:
            self._bars.update(self._tasks[stage], total=1, completed=1)
        task = self._tasks[data["stage"]]
        self._bars.start_task(task)
        if data["rows_max"]:
            rows = f"{data['rows']:,} of {data['rows_max']:,} rows"
            self._bars.update(task, total=data["rows_max"], completed=data["rows"], rows=rows)
        self._left_s, self._noted_s = data["seconds_left"], time.monotonic()

    def __rich__(self) -> Any:
        """Returns the lines as they are now, for each refresh."""
        from rich.console import Group
        from rich.text import Text

        left_s = max(1, round(self._left_s - (time.monotonic() - self._noted_s)))
        text = f"about {left_s // 60}:{left_s % 60:02} left  {printable(self._last)}"
        return Group(self._bars, Text(text, "dim", no_wrap=True, overflow="ellipsis"))


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms} ms" if duration_ms < 1000 else f"{duration_ms / 1000:.1f} s"
