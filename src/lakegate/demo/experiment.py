"""The experiment: three jobs on one table as three processes, with turns and without, on the same input.

In each run one job is killed with `kill -9` as soon as its second append is in the table, and is restarted: its rows are in
the table, and its checkpoint does not record them yet.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakegate import settings
from lakegate.cli.processes import Processes
from lakegate.cli.report import commit_row
from lakegate.delta.commit_file import commit_info, parse_commit
from lakegate.demo import journal
from lakegate.demo.archive import write_archive
from lakegate.demo.database import Carried, carry
from lakegate.demo.database_servers import lacks_postgres
from lakegate.demo.expected import COLUMNS, Change, Row, blamed, compare, replay, rows_of
from lakegate.demo.killer import Killed, Killer
from lakegate.demo.lake import CAREFUL, INGESTION, JOBS, LOCK, NAIVE, Lake, fill
from lakegate.demo.plain_jobs import PlainJobs, PlainRun
from lakegate.demo.records import Cut, Inputs
from lakegate.demo.stages import COMPARING, PREPARING, WITH_TURNS, WITHOUT_CAREFUL, WITHOUT_NAIVE, Show, Stages, notice
from lakegate.ids import Version
from lakegate.ops import inspection
from lakegate.report import facts, words
from lakegate.report.data import (
    COMPARISON,
    CommitRow,
    ComparedRun,
    Comparison,
    Ended,
    Fault,
    Outcome,
    ReportData,
    TurnRow,
    Write,
)
from lakegate.report.html_file import render
from lakegate.runtime import new_session, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "engagement"
"""The name of the table in `lakegate.yml`."""

ABOUT = {
    WITH_TURNS: "The jobs of lakegate.yml: Mutation after Ingestion, TTL after Mutation.",
    WITHOUT_CAREFUL: "Structured Streaming and MERGE as a careful engineer writes them: an append carries txnAppId and txnVersion, "
    "a write that conflicts is repeated, and Mutation and TTL keep every request in a table, which Ingestion reads before "
    "each append. Run one after another, these jobs give exactly the expected table.",
    WITHOUT_NAIVE: "The same, but the append carries no txnAppId and txnVersion.",
}

NOTES = (
    "All runs have the same input. In each, Ingestion was killed with kill -9 as soon as its second append was in the table, and "
    "was started again.",
    "The expected table comes from a replay of the input in plain Python, without Spark. A row that differs from it is traced to "
    "its commit by the table's change data feed.",
    "How rows of erased people come back without an order, and rows stay under an old person: a request and the rows that it "
    "concerns pass each other. The append has read the requests before this one is stored, and the MERGE of the request has read "
    "the table before the append commits. Delta reports a conflict only to a MERGE that commits after the append.",
    "Compare order and rows, not seconds: the runs have one machine, and the later ones find drivers that are warm.",
)
"""The report's notes on the runs."""

S3_NOTE = (
    "The tables are on S3. With turns a version is put on condition that it does not exist yet; the jobs without turns "
    "use Delta's own store, which checks first and puts afterwards: two jobs that put the same version both get a success, "
    "and one commit is lost."
)

CONFLICT = re.compile(r"\b(?:DELTA_)?CONCURRENT_[A-Z_]+|\bConcurrent[A-Za-z]+(?:Exception)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of the experiment."""

    comparison: Comparison
    database: Carried | None
    """The table of the run with turns in PostgreSQL; None: no server is installed."""
    failed: Mapping[str, int]
    """Jobs of the run with turns that ended with an error → their exit status."""
    report: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTable:
    """A final table against the expected one, and its commits."""

    name: str
    expected_rows: int
    final_rows: int
    faults: tuple[Fault, ...]
    commits: tuple[CommitRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsRun:
    """The facts about the run with turns before its table is read."""

    turns: tuple[TurnRow, ...]
    """As the ledger has them."""
    conflicts: Mapping[str, int]
    killed: int
    failed: Mapping[str, int]


def run_experiment(lake: Lake, inputs: Inputs, cut: Cut, show: Show) -> Findings:
    """Fills the lake, runs the jobs with turns and without, compares the tables, writes the report.

    Args:
        lake: An empty lake.
        inputs: The input of the jobs.
        cut: The number of files.
        show: Receives every event.

    Raises:
        KeyboardInterrupt: interrupted; the jobs have ended.
        LakegateError: the ledger or the tables cannot be read.
    """
    fill(lake, inputs, cut)
    stages = Stages(show, inputs, cut)
    has_own = "-XX:SharedArchiveFile" in settings.environment().get("JDK_JAVA_OPTIONS", "")
    if not lake.archive.exists() and not has_own:
        stages.begin(
            PREPARING, "an archive of Spark's classes, once for this folder: the drivers start in half the time"
        )
        write_archive(lake)
    with PlainJobs(lake, stages.show) as jobs:
        counts = f"{inputs.engagements.num_rows:,} engagements, {inputs.mutations.num_rows:,} requests to re-identify, "
        stages.begin(
            WITH_TURNS, f"{counts}{inputs.erasures.num_rows:,} to erase; Ingestion will be killed in the middle"
        )
        ours = _run_with_turns(lake, stages.show, jobs)
        stages.begin(WITHOUT_CAREFUL, "the same input, the same kill; each job writes when it is ready")
        careful = jobs.run(CAREFUL)
        stages.begin(WITHOUT_NAIVE, "the same again, but an append is not tied to its micro-batch")
        naive = jobs.run(NAIVE)
    lacking = lacks_postgres()
    sync = "the changes of the table with turns go to a PostgreSQL with unique keys"
    if lacking is not None:
        sync = f"no PostgreSQL: {lacking} (pip install 'lakegate[demo]')"
    stages.begin(COMPARING, f"each table with the expected one, row by row; {sync}")
    expected = replay(inputs)
    with reading(lake) as spark:
        tables = [
            final_table(spark, lake, inputs, expected, place, name)
            for place, name in (
                (lake.table, TABLE),
                (lake.table_without(CAREFUL), f"{TABLE} {WITHOUT_CAREFUL}"),
                (lake.table_without(NAIVE), f"{TABLE} {WITHOUT_NAIVE}"),
            )
        ]
        database = carry(lake, spark) if lacking is None else None
    compared = (
        with_turns(ours, tables[0]),
        without_turns(WITHOUT_CAREFUL, careful, tables[1]),
        without_turns(WITHOUT_NAIVE, naive, tables[2]),
    )
    comparison = Comparison(
        runs=compared,
        notes=(*NOTES, *([S3_NOTE] if lake.s3 else ()), *_carried_in_words(database)),
    )
    data = ReportData(
        pipeline="engagement (demo)",
        made_at_ms=time.time_ns() // 1_000_000,
        machine=machine(),
        turns=ours.turns,
        commits=tuple(commit for table in tables for commit in table.commits),
        comparison=comparison,
    )
    lake.spec.with_name(COMPARISON).write_text(comparison.to_json(), encoding="utf-8")
    lake.report.write_text(render(data), encoding="utf-8")
    return Findings(comparison=comparison, database=database, failed=ours.failed, report=lake.report)


# ------------------------------------------------------------------------------------------------- with turns


def _run_with_turns(lake: Lake, show: Show, jobs: PlainJobs) -> TurnsRun:
    """Runs the pipeline; starts the processes of the other jobs as soon as its own are up."""
    pipeline = settings.load_pipeline(str(lake.spec))
    store = open_store(pipeline.coordinator.url)
    conflicts: Counter[str] = Counter()
    epoch = 0

    def pid() -> int | None:
        """Returns the process to kill, while it holds the turn."""
        nonlocal epoch
        record = store.read(LOCK).record
        if record is None or record.holder is None or record.holder.job != INGESTION:
            return None
        epoch = record.epoch
        return record.holder.pid

    def reported(killed: Killed) -> None:
        notice(show, f"killed with -9 in the middle of turn {epoch} (pid {killed.pid})", INGESTION)

    def shown(event: dict[str, Any]) -> None:
        if event["event"] == "TurnGranted":
            jobs.start()
        conflicts.update(CONFLICT.findall(f"{event.get('conflict') or ''} {event.get('reason') or ''}"))
        show(event)

    idle_run = str(uuid.uuid4())
    commands = {job: _command(lake, job, idle_run) for job in JOBS}
    log = lake.logs / "with-turns.log"
    try:
        with log.open("a", encoding="utf-8") as errors, Killer(lake.commits(lake.table), pid, reported) as killer:
            processes = Processes(commands, show=shown, errors=errors)
            codes, _ = processes.run()
    finally:
        store.close()
    if processes.is_interrupted:
        raise KeyboardInterrupt
    return TurnsRun(
        turns=tuple(TurnRow.from_event(event) for event in inspection.turns_of(pipeline)),
        conflicts=dict(conflicts),
        killed=int(killer.killed is not None),
        failed={job: code for job, code in zip(JOBS, codes, strict=True) if code},
    )


def _command(lake: Lake, job: str, idle_run: str) -> list[str]:
    arguments = ["run", job, "--until-idle", "--spec", str(lake.spec), "--output", "jsonl", "--child"]
    return arguments + [part for other in JOBS for part in ("--among", other)] + ["--idle-run", idle_run]


ENDED = {
    Outcome.COMPLETED: Ended.WRITTEN,
    Outcome.REPLAYED: Ended.SKIPPED,
    Outcome.SWEPT: Ended.WRITTEN,
    Outcome.LOST: Ended.KILLED,
    Outcome.FAILED: Ended.FAILED,
    Outcome.FENCED: Ended.FAILED,
}


def with_turns(run: TurnsRun, table: FinalTable) -> ComparedRun:
    """Returns the run with turns, compared."""
    # The batch of the turn that was cut off is written, too, in that turn or in the next one.
    has_written = (Outcome.COMPLETED, Outcome.REPLAYED, Outcome.LOST)
    spans = [(turn.job, turn.batches) for turn in run.turns if turn.batches and turn.outcome in has_written]
    held = [facts.holds(own) for own in facts.by_lock(run.turns).values()]
    return ComparedRun(
        name=WITH_TURNS,
        about=ABOUT[WITH_TURNS],
        table=table.name,
        batches=len({(job, batch) for job, (first, last) in spans for batch in range(first, last + 1)}),
        conflicts=run.conflicts,
        overlaps=sum(map(len, map(facts.overlapping, held))),
        killed=run.killed,
        expected_rows=table.expected_rows,
        final_rows=table.final_rows,
        faults=table.faults,
        writes=tuple(_turn_as_write(hold, table.commits) for own in held for hold in own),
    )


def _turn_as_write(hold: facts.Hold, commits: Sequence[CommitRow]) -> Write:
    turn = hold.turn
    own = [commit for commit in commits if (commit.job, commit.epoch) == (turn.job, turn.epoch)]
    batches = (
        sorted({commit.batch for commit in own if commit.batch is not None}) if turn.batches is None else turn.batches
    )
    return Write(
        job=turn.job,
        batch=words.between(batches[0], batches[-1]) if batches else words.NOTHING,
        waited_since_ms=None if turn.waited_ms is None else turn.asked_at_ms,
        from_ms=hold.from_ms,
        until_ms=hold.until_ms,
        ended=ENDED[turn.outcome],
        error=turn.reason if ENDED[turn.outcome] is Ended.FAILED else None,
        versions=tuple(commit.version for commit in sorted(own, key=lambda commit: commit.batch is None)),
    )


# ------------------------------------------------------------------------------------------------ without turns


def without_turns(name: str, run: PlainRun, table: FinalTable) -> ComparedRun:
    """Returns a run without turns, compared."""
    writes = journal.writes(run.lines, table.commits)
    return ComparedRun(
        name=name,
        about=ABOUT[name],
        table=table.name,
        batches=journal.batches(run.lines),
        conflicts=journal.conflicts(run.lines),
        overlaps=journal.overlaps(writes),
        killed=run.killed,
        expected_rows=table.expected_rows,
        final_rows=table.final_rows,
        faults=table.faults,
        writes=writes,
    )


# -------------------------------------------------------------------------------------------------- afterwards


def final_table(
    spark: SparkSession, lake: Lake, inputs: Inputs, expected: Mapping[str, Row], place: str, name: str
) -> FinalTable:
    """Returns a final table's differences from the expected one, each traced to its commit.

    Args:
        spark: A session for reading.
        lake: The lake.
        inputs: The input of the jobs.
        expected: engagement_id → the correct row.
        place: The location of the table.
        name: Its name in the report.
    """
    found = read(spark, lake, place)
    keys = compare(expected, found, brought=map(str, inputs.engagements.column("engagement_id").to_pylist()))
    changes = changes_of(spark, place) if any(keys.values()) and found else []
    commits = commits_of(lake, place, name)
    by_version = {commit.version: commit for commit in commits}
    faults = []
    for kind, version, rows in blamed(keys, changes):
        commit = None if version is None else by_version.get(version)
        job, at_ms = (None, None) if commit is None else (commit.job, commit.timestamp_ms)
        faults.append(Fault(kind=kind, rows=rows, version=version, job=job, at_ms=at_ms))
    return FinalTable(
        name=name,
        expected_rows=len(expected),
        final_rows=len(found),
        faults=tuple(sorted(faults, key=lambda fault: (fault.at_ms or 0, fault.kind))),
        commits=tuple(commits),
    )


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


def changes_of(spark: SparkSession, table: str) -> list[Change]:
    """Returns the table's change data feed from its first version on; of an update the row after it."""
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", "0").load(table)
    return [
        Change(key=row["engagement_id"], version=row["_commit_version"], is_delete=row["_change_type"] == "delete")
        for row in feed.where("_change_type <> 'update_preimage'")
        .select("engagement_id", "_commit_version", "_change_type")
        .collect()
    ]


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
    """Returns the table's log, for the report; a job without turns has put its name and micro-batch into its commits."""
    log, rows = lake.commits(table), []
    for file in log.names():
        text = log.text(file)
        row = commit_row(name, parse_commit(Version(int(file.removesuffix(".json"))), text))
        if row.job is None and (said := commit_info(text).get("userMetadata")):
            row = replace(row, **json.loads(said))
        rows.append(row)
    return rows


def machine() -> str:
    """Returns a line about this machine, for the report."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{platform.node()}, {platform.system()}, {os.cpu_count()} cores, {memory_gb:.0f} GB"
