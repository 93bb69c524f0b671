"""The output of a run in progress: a line per event for people, a JSON line per event for machines."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, TextIO

from lakegate.cli.app import Output
from lakegate.redaction import printable
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
        case BatchWritten.__name__ if data["dead_letters"] or data["dead_requests"]:
            count = data["dead_letters"] + data["dead_requests"]
            return "trouble", f"{job}: batch {data['batch']}: {count} records set aside"
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


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms} ms" if duration_ms < 1000 else f"{duration_ms / 1000:.1f} s"
