"""The experiment: three jobs on one table as three processes, with turns and without, on the same input.

In both runs one job is killed with `kill -9` as soon as its second append is in the table, and is restarted: its rows are in
the table, and its checkpoint does not record them yet.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakegate import settings
from lakegate.cli.processes import Processes
from lakegate.cli.report import commit_row
from lakegate.delta.commit_file import parse_commit
from lakegate.demo import journal
from lakegate.demo.database import Carried, carry
from lakegate.demo.database_servers import lacks_postgres
from lakegate.demo.expected import COLUMNS, Difference, Row, compare, replay, rows_of
from lakegate.demo.journal import Line
from lakegate.demo.killer import Killed, Killer
from lakegate.demo.lake import INGESTION, JOBS, LOCK, Lake, fill
from lakegate.demo.records import Cut, Inputs
from lakegate.ids import Version
from lakegate.ops import inspection
from lakegate.report import facts
from lakegate.report.data import COMPARISON, CommitRow, Comparison, ComparisonColumn, Outcome, ReportData, TurnRow
from lakegate.report.html_file import render
from lakegate.runtime import new_session, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Show = Callable[[dict[str, Any]], None]
"""Receives every event, as JSON data: those of `lakegate run`, and `Noticed` for the demo's own actions."""

NOTES = (
    "In both runs Ingestion was killed with kill -9 as soon as its second append was in the table, and was started again.",
    "The jobs without turns are written with care: plain Structured Streaming with stock appends and MERGEs; Mutation and TTL "
    "keep every request in a table of their own, which Ingestion reads, so that a record that comes later is written under the "
    "right person, or not at all; after an error a query is started again from its checkpoint, at most ten times. Run one after "
    "another, they give the right table. They lack an order, and do not tie an append to its micro-batch (no txnAppId and "
    "txnVersion).",
)
"""The report's notes on the two runs."""

S3_NOTE = (
    "The tables are on S3. With turns a version is put on condition that it does not exist yet; the jobs without turns "
    "use Delta's own store, which checks first and puts afterwards: two jobs that put the same version both get a success, "
    "and one commit is lost."
)

CONFLICT = re.compile(r"\b(?:DELTA_)?CONCURRENT_[A-Z_]+|\bConcurrent[A-Za-z]+(?:Exception)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The result of one of the two runs."""

    column: ComparisonColumn
    difference: Difference
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of the experiment."""

    with_turns: Side
    without_turns: Side
    database: Carried | None
    """The table of the run with turns in PostgreSQL; None: no server is installed."""
    failed: Mapping[str, int]
    """Jobs of the run with turns that ended with an error → their exit status."""
    report: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The facts about a run before its table is read."""

    batches: int
    conflicts: Mapping[str, int]
    overlaps: int
    restarts: int
    killed: int
    elapsed_s: float


def run_experiment(lake: Lake, inputs: Inputs, cut: Cut, show: Show) -> Findings:
    """Fills the lake, runs the jobs with turns and without, compares both tables, writes the report.

    Args:
        lake: An empty lake.
        inputs: The input of the jobs.
        cut: The number of files.
        show: Receives every event.

    Raises:
        KeyboardInterrupt: interrupted; the jobs have ended.
        LakegateError: the ledger or the tables cannot be read.
    """
    counts = f"{inputs.engagements.num_rows:,} engagements, {inputs.mutations.num_rows:,} requests to re-identify, "
    _notice(show, f"== 1/5 inputs: {counts}{inputs.erasures.num_rows:,} to erase, in {lake.inputs}")
    fill(lake, inputs, cut)
    _notice(show, "== 2/5 with turns: three processes, each a Spark driver; Ingestion will be killed in the middle")
    ours, turns, failed = _run_with_turns(lake, show)
    _notice(show, "== 3/5 without turns: the same jobs on the same input, the same kill; each writes when it is ready")
    bare, _ = run_without_turns(lake, show)
    _notice(show, "== 4/5 both tables against the true answer, row by row")
    expected = replay(inputs)
    brought = [str(key) for key in inputs.engagements.column("engagement_id").to_pylist()]
    with reading(lake) as spark:
        sides = [
            side_of(run, compare(expected, read(spark, lake, table), brought=brought))
            for run, table in ((ours, lake.table), (bare, lake.table_without))
        ]
        lacking = lacks_postgres()
        if lacking is None:
            _notice(
                show, "== 5/5 the changes of the table with turns, commit by commit, to a PostgreSQL with unique keys"
            )
        else:
            _notice(
                show, f"== 5/5 left out, the table's changes to a PostgreSQL: {lacking} (pip install 'lakegate[demo]')"
            )
        database = carry(lake, spark) if lacking is None else None
    comparison = Comparison(
        with_coordinator=sides[0].column,
        without_coordinator=sides[1].column,
        notes=(
            *NOTES,
            *([S3_NOTE] if lake.s3 else ()),
            *_wrong_in_words(sides[1].difference),
            *_carried_in_words(database),
        ),
    )
    data = ReportData(
        pipeline="engagement (demo)",
        made_at_ms=_now_ms(),
        machine=machine(),
        turns=tuple(turns),
        commits=(
            *commits_of(lake, lake.table, "engagement"),
            *commits_of(lake, lake.table_without, "engagement, without turns"),
        ),
        comparison=comparison,
    )
    lake.spec.with_name(COMPARISON).write_text(comparison.to_json(), encoding="utf-8")
    lake.report.write_text(render(data), encoding="utf-8")
    return Findings(with_turns=sides[0], without_turns=sides[1], database=database, failed=failed, report=lake.report)


# ------------------------------------------------------------------------------------------------- with turns


def _run_with_turns(lake: Lake, show: Show) -> tuple[Run, list[TurnRow], dict[str, int]]:
    pipeline = settings.load_pipeline(str(lake.spec))
    store = open_store(pipeline.coordinator.url)
    cut_off: list[TurnRow] = []
    conflicts: Counter[str] = Counter()

    def pid() -> int | None:
        """Returns the process to kill, while it holds the turn."""
        record = store.read(LOCK).record
        if record is None or record.holder is None or record.holder.job != INGESTION:
            return None
        held = record.holder
        batches = None if held.batch is None else (held.batch, held.batch)
        cut_off[:] = [
            TurnRow(
                lock=LOCK,
                job=held.job,
                epoch=record.epoch,
                run=held.run,
                batches=batches,
                asked_at_ms=held.since_ms,
                granted_at_ms=held.since_ms,
                outcome=Outcome.LOST,
                reason="its process was ended with kill -9",
            )
        ]
        return held.pid

    def reported(killed: Killed) -> None:
        text = f"killed with -9 in the middle of turn {cut_off[0].epoch} (pid {killed.pid})"
        _notice(show, text, INGESTION)

    def shown(event: dict[str, Any]) -> None:
        conflicts.update(CONFLICT.findall(f"{event.get('conflict') or ''} {event.get('reason') or ''}"))
        show(event)

    idle_run = str(uuid.uuid4())
    commands = {job: _command(lake, job, idle_run) for job in JOBS}
    log = lake.logs / "with-turns.log"
    began_s = time.monotonic()
    try:
        with log.open("a", encoding="utf-8") as errors, Killer(lake.commits(lake.table), pid, reported) as killer:
            processes = Processes(commands, show=shown, errors=errors)
            codes, _ = processes.run()
    finally:
        store.close()
    if processes.is_interrupted:
        raise KeyboardInterrupt
    turns = [TurnRow.from_event(event) for event in inspection.turns_of(pipeline)]
    if killer.killed is not None and all(turn.epoch != cut_off[0].epoch for turn in turns):
        turns += cut_off
    # The batch of the turn that was cut off is written, too, in that turn or in the next one.
    has_written = (Outcome.COMPLETED, Outcome.REPLAYED, Outcome.LOST)
    spans = [(turn.job, turn.batches) for turn in turns if turn.batches and turn.outcome in has_written]
    run = Run(
        batches=len({(job, batch) for job, (first, last) in spans for batch in range(first, last + 1)}),
        conflicts=dict(conflicts),
        overlaps=sum(len(facts.overlapping(facts.holds(own))) for own in facts.by_lock(turns).values()),
        restarts=0,  # a job that ends with an error is not restarted: it ends the run
        killed=int(killer.killed is not None),
        elapsed_s=time.monotonic() - began_s,
    )
    return run, turns, {job: code for job, code in zip(JOBS, codes, strict=True) if code}


def _command(lake: Lake, job: str, idle_run: str) -> list[str]:
    arguments = ["run", job, "--until-idle", "--spec", str(lake.spec), "--output", "jsonl", "--child"]
    return arguments + [part for other in JOBS for part in ("--among", other)] + ["--idle-run", idle_run]


# ---------------------------------------------------------------------------------------------- without turns


class _PlainJob:
    """A job without turns: its process, restarted if it was killed, and its output."""

    def __init__(self, job: str, lake: Lake, show: Show, servers: str | None) -> None:
        self.job, self._lake, self._show = job, lake, show
        self._arguments = [job, str(lake.root)]
        self._arguments += [] if servers is None else ["--kafka", servers]
        self._arguments += [] if lake.s3 is None else ["--s3", lake.s3]
        self.lines: list[Line] = []
        self.process: subprocess.Popen[str] | None = None
        self._is_stopping = False
        self.thread = threading.Thread(target=self._run, name=job)

    def stop(self) -> None:
        """Ends the process at once."""
        self._is_stopping = True
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def add(self, line: Line) -> None:
        """Records a line, and shows it."""
        self.lines.append(line)
        text = {
            "began": f"batch {line.batch}: writes",
            "ended": f"batch {line.batch}: written",
            "failed": f"batch {line.batch}: {line.error}",
            "restarted": "the query is started again from its checkpoint",
            "killed": "killed with -9 as its append is in the table; started again",
            "gave_up": "ended with an error and is not started again: what is left of its input is not written",
        }[line.what]
        _notice(self._show, text, self.job)

    def _run(self) -> None:
        code = self._run_once()
        if code == -signal.SIGKILL and not self._is_stopping:
            code = self._run_once()
        if code and not self._is_stopping:
            self.add(Line(job=self.job, what="gave_up", batch=None, at_ms=_now_ms()))

    def _run_once(self) -> int:
        command = [sys.executable, "-m", "lakegate.demo.without", *self._arguments]
        with (
            (self._lake.logs / f"{self.job}-without.log").open("a", encoding="utf-8") as log,
            # A group of its own: Ctrl-C reaches only this process, which then ends the jobs. They read the end of their input
            # when this process dies, however suddenly, and end, too.
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            ) as self.process,
        ):
            assert self.process.stdout is not None
            for text in self.process.stdout:
                if text.startswith("{"):
                    self.add(Line(**json.loads(text)))
        return self.process.returncode


def run_without_turns(
    lake: Lake, show: Show, *, servers: str | None = None, is_killed: bool = True
) -> tuple[Run, list[Line]]:
    """Runs the jobs without turns; returns the result and the lines of the jobs.

    Args:
        lake: The lake.
        show: Receives every line of the jobs.
        servers: A Kafka broker with the inputs, each in a topic named as its folder; None: they are read from the folders.
        is_killed: Whether Ingestion is killed in the middle.
    """
    jobs = {job: _PlainJob(job, lake, show, servers) for job in JOBS}
    ingestion = jobs[INGESTION]

    def pid() -> int | None:
        return None if ingestion.process is None or not is_killed else ingestion.process.pid

    def reported(killed: Killed) -> None:
        ingestion.add(Line(job=INGESTION, what="killed", batch=None, at_ms=killed.at_ms))

    began_s = time.monotonic()
    with _ended(list(jobs.values())), Killer(lake.commits(lake.table_without), pid, reported) as killer:
        for job in jobs.values():
            job.thread.start()
        for job in jobs.values():
            job.thread.join()
    lines = [line for job in jobs.values() for line in job.lines]
    run = Run(
        batches=journal.batches(lines),
        conflicts=journal.conflicts(lines),
        overlaps=journal.overlaps(lines),
        restarts=sum(line.what == "restarted" for line in lines),
        killed=int(killer.killed is not None),
        elapsed_s=time.monotonic() - began_s,
    )
    return run, lines


@contextmanager
def _ended(jobs: Sequence[_PlainJob]) -> Iterator[None]:
    """Ends every process, however the block ends."""
    try:
        yield
    finally:
        for job in jobs:
            job.stop()
            if job.thread.ident is not None:
                job.thread.join()


# -------------------------------------------------------------------------------------------------- afterwards


def side_of(run: Run, difference: Difference) -> Side:
    """Returns the run with the differences of its table."""
    column = ComparisonColumn(
        jobs=len(JOBS),
        batches=run.batches,
        conflicts=run.conflicts,
        overlaps=run.overlaps,
        restarts=run.restarts,
        killed=run.killed,
        expected_rows=difference.expected_rows,
        final_rows=difference.final_rows,
        missing_rows=difference.missing_rows,
        doubled_rows=difference.doubled_rows,
        correct=difference.is_none,
    )
    return Side(column=column, difference=difference, elapsed_s=run.elapsed_s)


@contextmanager
def reading(lake: Lake) -> Iterator[SparkSession]:
    """Opens a session for reading the lake, which ends with the block."""
    with _standard_error_in(lake.logs / "comparison.log"):
        spark = new_session("lakegate demo", conf=lake.conf, s3=lake.s3 is not None)
    try:
        yield spark
    finally:
        spark.stop()


def read(spark: SparkSession, lake: Lake, table: str) -> list[Row]:
    """Returns the current rows of a table; none for a table that was never created."""
    if not lake.commits(table).names():
        return []
    return rows_of(spark.read.format("delta").load(table).select(*COLUMNS).toArrow())


def _wrong_in_words(difference: Difference) -> list[str]:
    """Describes the faults of the table without turns other than missing and duplicated rows."""
    wrong = (
        (difference.wrong_person_rows, "under a wrong person: a request met the table before a record did"),
        (difference.not_erased_rows, "of people who were to be erased and are still there"),
        (difference.other_rows, "with other faults"),
    )
    listed = "; ".join(f"{rows:,} {'row' if rows == 1 else 'rows'} {what}" for rows, what in wrong if rows)
    return [f"Without turns the table also has {listed}."] if listed else []


def _carried_in_words(carried: Carried | None) -> list[str]:
    if carried is None:
        return []
    return [
        f"The {carried.changes:,} changes of the table with turns went on to a PostgreSQL table with a primary key and a unique "
        f"key in {carried.batches:,} {'batch' if carried.batches == 1 else 'batches'}; compared with the table, "
        f"{carried.differences or 'no'} {'row differs' if carried.differences in (0, 1) else 'rows differ'}."
    ]


@contextmanager
def _standard_error_in(log: Path) -> Iterator[None]:
    """Redirects the output of a JVM that is started in the block to a file, as with the jobs."""
    own = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def commits_of(lake: Lake, table: str, name: str) -> list[CommitRow]:
    """Returns the table's log, for the report."""
    log = lake.commits(table)
    return [
        commit_row(name, parse_commit(Version(int(file.removesuffix(".json"))), log.text(file))) for file in log.names()
    ]


def machine() -> str:
    """Returns a line about this machine, for the report."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{platform.node()}, {platform.system()}, {os.cpu_count()} cores, {memory_gb:.0f} GB"


def _notice(show: Show, text: str, job: str | None = None) -> None:
    show({"format": 1, "event": "Noticed", "job": job, "text": text})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
