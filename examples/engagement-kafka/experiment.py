"""Three streams from three Kafka topics into one Delta table: with a coordinator in ZooKeeper, then without one.

    python examples/engagement-kafka/experiment.py FOLDER

Starts a Kafka broker and a ZooKeeper server on this machine, fills the topics, and runs the `lakegate.yml` of this folder; then
the same streams as plain Structured Streaming, each of which writes when it is ready. Compares both tables with the correct
result, and draws both timelines in FOLDER/report.html. Exit status 1 if the run with turns breaks a promise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from lakegate import settings
from lakegate.config.model import Pipeline
from lakegate.demo.expected import replay
from lakegate.demo.experiment import (
    CONFLICT,
    TABLE,
    TurnsRun,
    final_table,
    machine,
    reading,
    with_turns,
    without_turns,
)
from lakegate.demo.generator import generate
from lakegate.demo.lake import CAREFUL, INGESTION, LOCK, MUTATION, TTL, Lake
from lakegate.demo.plain_jobs import PlainJobs
from lakegate.demo.records import FOLDERS, Inputs
from lakegate.demo.servers import kafka_broker, zookeeper
from lakegate.demo.stages import WITHOUT_CAREFUL
from lakegate.ops import inspection
from lakegate.report.data import ComparedRun, Comparison, Outcome, ReportData, TurnRow
from lakegate.report.html_file import render

ROWS = 1200
AFTER = {MUTATION: INGESTION, TTL: MUTATION}
"""The order of `lakegate.yml`."""


def main(folder: Path, seed: int = 7) -> int:
    """Runs both, and prints their results."""
    lake, inputs = Lake(folder.absolute()), generate(seed, ROWS)
    lake.logs.mkdir(parents=True)
    java = settings.java_sources()
    with (
        zookeeper(lake.root / "zookeeper", java=java) as (node,),
        kafka_broker(lake.root / "kafka", jars=settings.jar_sources(), java=java) as servers,
    ):
        fill_topics(servers, inputs)
        text = Path(__file__).with_name("lakegate.yml").read_text(encoding="utf-8")
        text = text.replace("127.0.0.1:2181", node.address).replace("127.0.0.1:9092", servers)
        lake.spec.write_text(text, encoding="utf-8")
        ours, pipeline = run_with_turns(lake)
        with PlainJobs(lake, print_line, servers=servers) as jobs:
            bare = jobs.run(CAREFUL, is_killed=False)
    expected = replay(inputs)
    with reading(lake) as spark:
        tables = [
            final_table(spark, lake, inputs, expected, place, name)
            for place, name in ((lake.table, TABLE), (lake.table_without(CAREFUL), f"{TABLE} {WITHOUT_CAREFUL}"))
        ]
    compared = (with_turns(ours, tables[0]), without_turns(WITHOUT_CAREFUL, bare, tables[1]))
    comparison = Comparison(runs=compared)
    data = ReportData(
        pipeline=pipeline.name,
        made_at_ms=time.time_ns() // 1_000_000,
        machine=machine(),
        turns=ours.turns,
        commits=tuple(commit for table in tables for commit in table.commits),
        comparison=comparison,
    )
    lake.report.write_text(render(data), encoding="utf-8")
    wrong = faults(compared[0], ours.turns, pipeline)
    if compared[0].differing_rows:
        wrong.append(f"the table is not as it should be: {compared[0].faults}")
    said = {"wrong": wrong, "report": str(lake.report), **json.loads(comparison.to_json())}
    print(json.dumps(said, indent=2), flush=True)
    return 1 if wrong else 0


def fill_topics(servers: str, inputs: Inputs) -> None:
    """Writes each stream's records as JSON into one partition of its topic: requests are ordered."""
    producer = Producer({"bootstrap.servers": servers})
    for topic, table in zip(FOLDERS, (inputs.engagements, inputs.mutations, inputs.erasures), strict=True):
        for row in table.to_pylist():
            producer.produce(topic, value=json.dumps(row, default=lambda instant: instant.isoformat()), partition=0)
    if producer.flush(60):
        raise SystemExit("the broker did not take the records")


def run_with_turns(lake: Lake) -> tuple[TurnsRun, Pipeline]:
    """Runs three applications, as on three clusters: each `lakegate run` is a process with a Spark driver of its own."""
    command = [sys.executable, "-m", "lakegate", "run", "--until-idle", "--spec", str(lake.spec), "--output", "jsonl"]
    started = []
    for streams in ([INGESTION], [MUTATION], [TTL, "Audit", "--together"]):
        with (
            (lake.logs / f"{streams[0]}.jsonl").open("wb") as said,
            (lake.logs / f"{streams[0]}.log").open("wb") as log,
        ):
            started.append(subprocess.Popen([*command, *streams], stdout=said, stderr=log))
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"the streams ended with exit status {codes}; see {lake.logs}")
    lines = [line for file in lake.logs.glob("*.jsonl") for line in file.read_text(encoding="utf-8").splitlines()]
    events = [json.loads(line) for line in lines if line.startswith("{")]
    conflicts = Counter[str]()
    for event in events:
        conflicts.update(CONFLICT.findall(f"{event.get('conflict') or ''} {event.get('reason') or ''}"))
    pipeline = settings.load_pipeline(str(lake.spec))
    turns = tuple(TurnRow.from_event(event) for event in inspection.turns_of(pipeline))
    return TurnsRun(turns=turns, conflicts=dict(conflicts), killed=0, failed={}), pipeline


def faults(run: ComparedRun, turns: Sequence[TurnRow], pipeline: Pipeline) -> list[str]:
    """Returns the promises that the run with turns broke."""
    wrong = [str(violation) for violation in inspection.verify_pipeline(pipeline).violations]
    if run.overlaps or run.conflicts:
        wrong.append(f"{run.overlaps} overlaps, conflicts: {run.conflicts}")
    locks = {turn.lock for turn in turns}
    if len(locks) != 2:
        wrong.append(f"turns on {sorted(locks)}: two locks were expected")
    done = [turn for turn in turns if turn.lock == LOCK and turn.outcome is Outcome.COMPLETED and turn.epoch]
    return wrong + out_of_order([turn.job for turn in sorted(done, key=lambda turn: turn.epoch or 0)])


def out_of_order(jobs: list[str]) -> list[str]:
    """Returns turns that were granted although the preceding stream had not had one since, and had more to do.

    Args:
        jobs: The jobs that had the turns, one after another.
    """
    wrong = []
    for place, job in enumerate(jobs):
        before = AFTER.get(job)
        since = max((n for n in range(place) if jobs[n] == job), default=-1)
        if before is not None and before in jobs[place:] and before not in jobs[since + 1 : place]:
            wrong.append(f"turn {place + 1} was of {job}, and {before} had had none since the last")
    return wrong


def print_line(event: dict[str, Any]) -> None:
    """Prints an event for the person who watches the run."""
    if event["event"] == "Noticed":
        print(f"{event.get('job') or '':10} {event['text']}", flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="engagement-kafka-"))))
