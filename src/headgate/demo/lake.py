"""The folder of a demo: the inputs, the pipeline's file, the lake with turns and the one without, logs, the report."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate.demo.records import Cut, Inputs, write_inputs
from headgate.errors import InvalidRequest, Unavailable

INGESTION, MUTATION, TTL = JOBS = ("Ingestion", "Mutation", "TTL")
LOCK = "ENGAGEMENT_HVS_DATA"
MARK = "demo.json"
"""Tells a folder that a demo made, and may empty, from any other."""

COLUMNS = (
    "engagement_id STRING NOT NULL, source STRING, org_id STRING, alias_id STRING, role STRING, engagement_type STRING, "
    "engagement_time TIMESTAMP, arrival_time TIMESTAMP, arrival_seq BIGINT, thread_id STRING, subject STRING, "
    "payload STRING, person_id STRING"
)
SPARK: Mapping[str, str] = {
    "spark.master": "local[2]",
    # Three drivers share a small machine, each for a minute: less memory, and no time for compiling code well.
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
PROPERTIES: Mapping[str, str] = {"delta.enableDeletionVectors": "true"}

_PIPELINE = """\
# Written by `headgate demo`. Three jobs on one table, each after the one before it.
name: engagement
storage: ./lake/_headgate
coordinator: {{url: "sqlite:./lake/_headgate/turns.db", lock_timeout: 10m}}
spark:
{spark}
tables:
  engagement:
    path: ./lake/engagement
    lock: {lock}
    columns: "{columns}"
    properties: {{{properties}}}
streams:
  Ingestion:
    table: engagement
    every: 1h
    source: {{files: "./in/ingest", format: parquet}}
    max_rows_per_batch: {ingest_rows}   # one file
    turn_limit: {{batches: 1}}          # so that the others come in between
    append: {{columns: {{person_id: alias_id}}, key: [engagement_id]}}
  Mutation:
    table: engagement
    every: 1h
    after: Ingestion
    source: {{files: "./in/mutation", format: parquet}}
    max_rows_per_batch: {mutation_rows}
    turn_limit: {{batches: 1}}
    mutate:
      match: {{alias_id: alias_id}}
      set: {{person_id: new_person_id}}
      sequence_by: seq
      applies_to: arrived_and_later
  TTL:
    table: engagement
    every: 1d
    after: Mutation
    source: {{files: "./in/delete", format: parquet}}
    max_rows_per_batch: {delete_rows}
    turn_limit: {{batches: 1}}
    erase: {{match: {{person_id: person_id}}}}
"""


@dataclass(frozen=True, slots=True)
class Lake:
    """Where everything of one demo is."""

    root: Path

    @property
    def spec(self) -> Path:
        """The pipeline's file."""
        return self.root / "headgate.yml"

    @property
    def inputs(self) -> Path:
        """The streams' source folders, read by both runs."""
        return self.root / "in"

    @property
    def storage(self) -> Path:
        """Checkpoints, ledger and turns of the run with the coordinator."""
        return self.root / "lake" / "_headgate"

    @property
    def table(self) -> Path:
        """The table of the run with the coordinator."""
        return self.root / "lake" / "engagement"

    @property
    def without(self) -> Path:
        """Everything of the run without it."""
        return self.root / "without"

    @property
    def table_without(self) -> Path:
        """The table of the run without it."""
        return self.without / "engagement"

    @property
    def logs(self) -> Path:
        """What the jobs wrote on their standard error."""
        return self.root / "logs"

    @property
    def report(self) -> Path:
        """The report."""
        return self.root / "report.html"


@contextmanager
def open_lake(root: Path) -> Iterator[Lake]:
    """The folder for one run of the demo, made if need be and emptied of what an earlier demo left; nobody else's.

    Raises:
        InvalidRequest: the folder holds something that no demo made, or a demo is running in it; nothing was changed.
        Unavailable: it cannot be written.
    """
    lake = Lake(root.absolute())
    mark = lake.root / MARK
    if lake.root.exists() and not mark.is_file() and (not lake.root.is_dir() or any(lake.root.iterdir())):
        raise InvalidRequest(
            f"{lake.root} is not empty, and not of a demo; nothing was changed",
            advice="Name another place with --dir DIR",
        )
    try:
        lake.root.mkdir(parents=True, exist_ok=True)
        with mark.open("a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidRequest(
                    f"a demo is running in {lake.root}; nothing was changed",
                    advice="Wait for its end, or name another place with --dir DIR",
                ) from None
            if mark.stat().st_size == 0:
                file.write(json.dumps({"format": 1, "made_by": "headgate demo"}) + "\n")
                file.flush()
            _empty(lake)
            yield lake
    except OSError as error:
        raise Unavailable(
            f"the folder of the demo cannot be written: {error.strerror}",
            advice="Name another place with --dir DIR",
            path=error.filename,
        ) from error


def _empty(lake: Lake) -> None:
    for folder in (lake.inputs, lake.table.parent, lake.without, lake.logs):
        if folder.exists():
            shutil.rmtree(folder)
    for file in (lake.spec, lake.report):
        file.unlink(missing_ok=True)


def fill(lake: Lake, inputs: Inputs, cut: Cut) -> None:
    """Writes the sources' files and the pipeline's file."""
    largest = write_inputs(inputs, lake.inputs, cut)
    lake.logs.mkdir()
    lake.spec.write_text(pipeline_text(largest), encoding="utf-8")


def pipeline_text(largest: Mapping[str, int]) -> str:
    """`headgate.yml` of the demo, so that each file is a micro-batch.

    Args:
        largest: Source folder → rows of its largest file.
    """
    return _PIPELINE.format(
        spark="\n".join(f"  {key}: {json.dumps(value)}" for key, value in SPARK.items()),
        lock=LOCK,
        columns=COLUMNS,
        properties=", ".join(f"{key}: {json.dumps(value)}" for key, value in PROPERTIES.items()),
        **{f"{folder}_rows": rows for folder, rows in largest.items()},
    )


def commit_files(table: Path) -> list[Path]:
    """The commit files of a local table that are there now, by version."""
    try:
        names = os.listdir(table / "_delta_log")
    except FileNotFoundError:
        return []
    return [table / "_delta_log" / name for name in sorted(names) if len(name) == 25 and name.endswith(".json")]
