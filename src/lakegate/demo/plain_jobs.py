"""The processes of the jobs without turns: started once, then run in one variant after another."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from lakegate.demo.journal import Line
from lakegate.demo.killer import Killed, Killer
from lakegate.demo.lake import INGESTION, JOBS, Lake
from lakegate.demo.stages import Show, notice, plain_batch
from lakegate.errors import Unavailable

START_S = 300.0
"""How long the jobs may take to start: three JVMs on a busy machine."""

TEXTS: Mapping[str, str] = {
    "began": "batch {batch}: writes",
    "ended": "batch {batch}: written",
    "failed": "batch {batch}: {error}",
    "restarted": "the query is started again from its checkpoint",
    "killed": "killed with -9 as its append is in the table; started again",
    "gave_up": "ended with an error and is not started again: what is left of its input is not written",
}
"""What a job says → the line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    """The facts about a run without turns before its table is read."""

    lines: tuple[Line, ...]
    killed: int


class PlainJobs:
    """A process for each job. A context manager: every process ends with the block, however it ends."""

    def __init__(self, lake: Lake, show: Show, *, servers: str | None = None) -> None:
        """Prepares the processes.

        Args:
            lake: The lake.
            show: Receives every line of the jobs.
            servers: A Kafka broker with the inputs, each in a topic named as its folder; None: they are read from the folders.
        """
        self._lake, self._show = lake, show
        self._arguments = [str(lake.root)]
        self._arguments += [] if servers is None else ["--kafka", servers]
        self._arguments += [] if lake.s3 is None else ["--s3", lake.s3]
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._starting = threading.Lock()
        self._ready: set[str] = set()
        self._said: queue.Queue[tuple[str, Line | int]] = queue.Queue()
        """Job → its next line, or the exit status of its process."""
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> PlainJobs:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for thread in self._threads:
            thread.join()

    def start(self) -> None:
        """Starts the processes, and does not wait for them; may be called by several threads."""
        with self._starting:
            for job in JOBS:
                if job not in self._processes:
                    self._start(job)

    def run(self, variant: str, *, is_killed: bool = True) -> PlainRun:
        """Runs all jobs in a variant to the end of their sources, beginning when all are ready.

        Args:
            variant: One of the `VARIANTS`.
            is_killed: Whether Ingestion is killed in the middle.

        Raises:
            Unavailable: a job did not start; nothing was written in this variant.
        """
        self.start()
        deadline_s = time.monotonic() + START_S
        while len(self._ready) < len(JOBS):
            self._take_ready(deadline_s)
        lines: list[Line] = []
        watched = self._lake.commits(self._lake.table_without(variant))
        with Killer(watched, lambda: self._processes[INGESTION].pid if is_killed else None, self._reported) as killer:
            for job in JOBS:
                self._name(job, variant)
            going_on, is_restarted = set(JOBS), False
            while going_on:
                job, said = self._said.get()
                if said == -signal.SIGKILL and not is_restarted:
                    is_restarted = True
                    self._start(job)
                    self._name(job, variant)
                elif isinstance(said, int):
                    del self._processes[job]  # the next run starts it
                    self._ready.discard(job)
                    going_on.discard(job)
                    self._add(lines, _observed(job, "gave_up"))
                elif said.what == "ready":
                    self._ready.add(job)
                elif said.what == "done":
                    going_on.discard(job)
                else:
                    self._add(lines, said)
                    going_on -= {job} if said.what == "gave_up" else set()
        return PlainRun(lines=tuple(lines), killed=int(killer.killed is not None))

    def _take_ready(self, deadline_s: float) -> None:
        try:
            job, said = self._said.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            raise Unavailable(f"not all jobs came up within {START_S:g} s; see {self._lake.logs}") from None
        if isinstance(said, int):
            raise Unavailable(f"{job} without turns ended with exit status {said}; see {self._lake.logs}")
        self._ready.add(job)

    def _add(self, lines: list[Line], line: Line) -> None:
        lines.append(line)
        text = TEXTS[line.what].format(batch=line.batch, error=line.error)
        notice(self._show, text, line.job)
        if line.what == "ended":
            self._show(plain_batch(line.job, line.batch))

    def _reported(self, killed: Killed) -> None:
        self._said.put((INGESTION, _observed(INGESTION, "killed", killed.at_ms)))

    def _name(self, job: str, variant: str) -> None:
        stdin = self._processes[job].stdin
        assert stdin is not None
        stdin.write(f"{variant}\n")
        stdin.flush()

    def _start(self, job: str) -> None:
        # A group of its own: Ctrl-C reaches only this process, which then ends the jobs. They read the end of their input
        # when this process dies, however suddenly, and end, too.
        with (self._lake.logs / f"{job}-without.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "lakegate.demo.without", job, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._ready.discard(job)
        self._processes[job] = process
        thread = threading.Thread(target=self._read, args=(job, process), name=f"{job} without turns")
        self._threads.append(thread)
        thread.start()

    def _read(self, job: str, process: subprocess.Popen[str]) -> None:
        with process:
            assert process.stdout is not None
            for text in process.stdout:
                if text.startswith("{"):
                    self._said.put((job, Line(**json.loads(text))))
        self._said.put((job, process.returncode))


def _observed(job: str, what: str, at_ms: int | None = None) -> Line:
    return Line(job=job, what=what, batch=None, at_ms=time.time_ns() // 1_000_000 if at_ms is None else at_ms)
