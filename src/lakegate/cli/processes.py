"""Runs several streams, one process each: starts them together, restarts killed ones, and stops them together."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TextIO

from lakegate.redaction import printable

RESTARTS_MAX = 5
"""How often a killed stream is restarted; its batch is still written only once."""


JVM_ENDED = "JvmEnded"
"""The event of a process whose JVM ended: it is restarted like a killed process."""
SYNC_REPORT = "SyncReport"
"""The event with the report of a sync, as a stream has its RunReport."""


@dataclass
class _Child:
    """The process of one stream."""

    name: str
    command: list[str]
    process: subprocess.Popen[str] | None = None
    restarts: int = 0
    has_lost_jvm: bool = False
    reports: list[dict[str, Any]] = field(default_factory=list)


class Processes:
    """A process for each stream. Each ends by itself, or after its turn when this process stops it or dies."""

    def __init__(
        self,
        commands: dict[str, list[str]],
        *,
        show: Callable[[dict[str, Any]], None],
        errors: TextIO | None = None,
        ended: str | None = None,
    ) -> None:
        """Prepares the processes.

        Args:
            commands: Stream → arguments of `lakegate` that run it and print its events as JSON lines.
            show: Receives every event.
            errors: A file for their standard error; this process's own by default.
            ended: Why an earlier process ended that these replace: they are restarted once less.
        """
        self._children = [
            _Child(name, [sys.executable, "-m", "lakegate", *arguments]) for name, arguments in commands.items()
        ]
        self._show, self._errors = show, errors
        for child in self._children if ended is not None else ():
            self._start_again(child, str(ended))
        self._is_stopping = False
        self._signals: list[int] = []
        self._codes: dict[str, int] = {}

    def run(self) -> tuple[list[int], list[dict[str, Any]]]:
        """Runs all processes to their end; returns their exit codes and their reports."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, self._on_signal)
        try:
            threads = [threading.Thread(target=self._watch, args=(child,), name=child.name) for child in self._children]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # with a timeout, so that signals are handled in between
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return [self._codes[child.name] for child in self._children], [
            r for child in self._children for r in child.reports
        ]

    def _watch(self, child: _Child) -> None:
        while True:
            code = self._run_once(child)
            is_killed = (code < 0 or child.has_lost_jvm) and not self._is_stopping
            if not is_killed or child.restarts >= RESTARTS_MAX:
                break
            ended = "its JVM ended" if code >= 0 else f"its process was ended by {signal.Signals(-code).name}"
            self._start_again(child, ended)
        self._codes[child.name] = self._meaning(code)
        if code != 0 and not self._is_stopping:
            text = f"ended with exit status {self._codes[child.name]}; the others end after their turn"
            self._show({"format": 1, "event": "Noticed", "job": child.name, "text": text})
            self.stop()

    def _start_again(self, child: _Child, ended: str) -> None:
        child.restarts += 1
        text = f"{ended}; started again ({child.restarts} of {RESTARTS_MAX})"
        self._show({"format": 1, "event": "Noticed", "job": child.name, "text": text})

    def _meaning(self, code: int) -> int:
        """Returns the exit status that counts for a process. A process that was asked to stop adds no error of its own."""
        if code >= 0:
            return code
        if -code == signal.SIGINT:
            return 130
        return 0 if self._is_stopping else 1

    def _run_once(self, child: _Child) -> int:
        # A group of its own: a Ctrl-C in the terminal reaches only this process, which then stops the children in order. Their
        # input is a pipe from this process: when this process dies, however suddenly, the child reads its end and stops.
        with subprocess.Popen(
            child.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        ) as process:
            child.process, child.has_lost_jvm = process, False
            if self._is_stopping:
                process.terminate()
            assert process.stdout is not None
            for line in process.stdout:
                self._take(child, line)
        return process.returncode

    def _take(self, child: _Child, line: str) -> None:
        try:
            data = json.loads(line)
        except ValueError:
            (self._errors or sys.stderr).write(
                printable(line)
            )  # not an event: a line that the JVM, or user code, printed
            return
        if data.get("event") in ("RunReport", SYNC_REPORT):
            child.reports.append(data)
        elif data.get("event") == JVM_ENDED:
            child.has_lost_jvm = True
        elif "event" in data:
            self._show(data)

    @property
    def signals(self) -> tuple[int, ...]:
        """The signals that asked this process to stop its children, in order."""
        return tuple(self._signals)

    @property
    def is_interrupted(self) -> bool:
        """True if a signal asked this process to stop its children."""
        return bool(self._signals)

    def stop(self) -> None:
        """Asks every process to end after its turn; asks only once."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._terminate()

    def _terminate(self) -> None:
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.terminate()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
        if self._is_stopping:
            self._terminate()  # the second signal ends a stream at once, and its batch runs again
        self.stop()
