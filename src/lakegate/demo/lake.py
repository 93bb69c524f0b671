"""The folder of a demo: the inputs, the pipeline's file, the lakes with turns and without, logs, the report.

With `--s3` the tables are in a bucket of a server on this machine, and everything else is in the folder.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyarrow import fs

from lakegate import __version__
from lakegate.demo.aws_server import aws_server, lacks_aws
from lakegate.demo.records import Cut, Inputs, write_inputs
from lakegate.errors import InvalidRequest, MissingExtra, Unavailable

INGESTION, MUTATION, TTL = JOBS = ("Ingestion", "Mutation", "TTL")
CAREFUL, NAIVE = VARIANTS = ("careful", "naive")
"""How the jobs without turns append: tied to the micro-batch by `txnAppId` and `txnVersion`, or not."""
LOCK = "ENGAGEMENT_HVS_DATA"
BUCKET = "lake"
S3_KEYS = ("demo", "demodemo")
"""Access key and secret of the server on this machine, which accepts any."""
MARK = "demo.json"
"""Marks a folder that a demo created, and may empty."""

COLUMNS = (
    "engagement_id STRING NOT NULL, source STRING, org_id STRING, alias_id STRING, role STRING, engagement_type STRING, "
    "engagement_time TIMESTAMP, arrival_time TIMESTAMP, arrival_seq BIGINT, thread_id STRING, subject STRING, "
    "payload STRING, person_id STRING"
)
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SPARK: Mapping[str, str] = {
    "spark.master": "local[2]",
    # Three drivers share a small machine, each for some minutes: less memory, and no time for optimized compilation. The small
    # code cache of that setting would be full after a minute of Spark, and then nothing more is compiled.
    "spark.driver.memory": "1g",
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=400m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Plans of a few thousand rows, each met a few times: making code of them takes longer than they do.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
PROPERTIES: Mapping[str, str] = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}

_PIPELINE = """\
# Written by `lakegate demo`. Three jobs on one table, each after the one before it.
name: engagement
storage: ./lake/_lakegate
coordinator: {{url: "sqlite:./lake/_lakegate/turns.db", lock_timeout: 10m}}
spark:
{spark}
tables:
  engagement:
    path: "{table}"
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
class Commits:
    """The log of a table, on any file system."""

    files: Any
    """A file system of `pyarrow.fs`."""
    log: str

    def names(self) -> list[str]:
        """Returns the current commit files, by version."""
        found = self.files.get_file_info(fs.FileSelector(self.log, allow_not_found=True))
        return sorted(one.base_name for one in found if len(one.base_name) == 25 and one.extension == "json")

    def text(self, name: str) -> str:
        """Returns the content of a commit file."""
        with self.files.open_input_stream(f"{self.log}/{name}") as stream:
            return bytes(stream.read()).decode()


def s3_files(url: str) -> Any:
    """Returns the file system of the server on this machine."""
    key, secret = S3_KEYS
    return fs.S3FileSystem(
        access_key=key, secret_key=secret, endpoint_override=url, region="us-east-1", allow_bucket_creation=True
    )


@dataclass(frozen=True, slots=True)
class Lake:
    """The paths of one demo."""

    root: Path
    s3: str | None = None
    """The URL of the S3 server with the tables; None: they are in the folder."""

    @property
    def spec(self) -> Path:
        """The pipeline's file."""
        return self.root / "lakegate.yml"

    @property
    def inputs(self) -> Path:
        """The streams' source folders, read by both runs."""
        return self.root / "in"

    @property
    def storage(self) -> Path:
        """Checkpoints, ledger and turns of the run with the coordinator."""
        return self.root / "lake" / "_lakegate"

    @property
    def table(self) -> str:
        """The table of the run with the coordinator."""
        return self.location(self.storage.parent / "engagement")

    def location(self, table: Path) -> str:
        """Returns the location of a table of this folder."""
        return str(table) if self.s3 is None else f"s3a://{BUCKET}/{table.relative_to(self.root)}"

    @property
    def archive(self) -> Path:
        """The archive of Spark's classes for this and later demos in the folder; see `lakegate.demo.archive`."""
        return self.root / f"classes-{__version__}.jsa"

    @property
    def conf(self) -> Mapping[str, str]:
        """Spark's configuration in addition to the log store."""
        conf = dict(SPARK)
        if self.archive.exists():
            conf[JAVA_OPTIONS] += f' "-XX:SharedArchiveFile={self.archive}" -Xlog:disable'
        if self.s3 is None:
            return conf
        key, secret = S3_KEYS
        return {
            **conf,
            "spark.hadoop.fs.s3a.endpoint": self.s3,
            "spark.hadoop.fs.s3a.access.key": key,
            "spark.hadoop.fs.s3a.secret.key": secret,
        }

    def commits(self, table: str) -> Commits:
        """Returns the log of one of its tables."""
        if self.s3 is None:
            return Commits(fs.LocalFileSystem(), f"{table}/_delta_log")
        return Commits(s3_files(self.s3), f"{table.removeprefix('s3a://')}/_delta_log")

    @property
    def without(self) -> Path:
        """The folder of the runs without turns, each in a folder of its variant."""
        return self.root / "without"

    def table_without(self, variant: str) -> str:
        """The table of a run without turns."""
        return self.location(self.without / variant / "engagement")

    @property
    def logs(self) -> Path:
        """The standard error of the jobs."""
        return self.root / "logs"

    @property
    def report(self) -> Path:
        """The report."""
        return self.root / "report.html"


@contextmanager
def open_lake(root: Path, *, s3: bool = False) -> Iterator[Lake]:
    """Opens the folder for one run of the demo, created if needed; empties what an earlier demo left, and nothing else.

    With `s3` a server for its tables runs until the block ends.

    Raises:
        MissingExtra: no S3 server is installed.
        InvalidRequest: the folder has files that no demo made, or a demo is running in it; nothing was changed.
        Unavailable: the folder cannot be written.
    """
    lacking = lacks_aws() if s3 else None
    if lacking is not None:
        raise MissingExtra(
            f"there is no S3 server here: {lacking}; nothing was made", advice="pip install 'lakegate[demo]'"
        )
    lake = Lake(root.absolute())
    mark = lake.root / MARK
    if lake.root.exists() and not mark.is_file() and (not lake.root.is_dir() or any(lake.root.iterdir())):
        raise InvalidRequest(
            f"{lake.root} is not empty, and no demo created it; nothing was changed",
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
                file.write(json.dumps({"format": 1, "made_by": "lakegate demo"}) + "\n")
                file.flush()
            _empty(lake)
            if s3:
                with aws_server(lake.logs) as server:
                    yield replace(lake, s3=server.endpoint)
            else:
                yield lake
    except OSError as error:
        raise Unavailable(
            f"the folder of the demo cannot be written: {error.strerror}",
            advice="Name another place with --dir DIR",
            path=error.filename,
        ) from error


def _empty(lake: Lake) -> None:
    for folder in (lake.inputs, lake.storage.parent, lake.without, lake.logs):
        if folder.exists():
            shutil.rmtree(folder)
    for file in (lake.spec, lake.report):
        file.unlink(missing_ok=True)


def fill(lake: Lake, inputs: Inputs, cut: Cut) -> None:
    """Writes the sources' files and the pipeline's file."""
    largest = write_inputs(inputs, lake.inputs, cut)
    if lake.s3 is not None:
        s3_files(lake.s3).create_dir(BUCKET)
    lake.logs.mkdir(exist_ok=True)
    lake.spec.write_text(pipeline_text(lake, largest), encoding="utf-8")


def pipeline_text(lake: Lake, largest: Mapping[str, int]) -> str:
    """Returns `lakegate.yml` of the demo, in which each file is a micro-batch.

    Args:
        lake: The lake.
        largest: Source folder → rows of its largest file.
    """
    return _PIPELINE.format(
        spark="\n".join(f"  {key}: {json.dumps(value)}" for key, value in lake.conf.items()),
        table="./lake/engagement" if lake.s3 is None else lake.table,
        lock=LOCK,
        columns=COLUMNS,
        properties=", ".join(f"{key}: {json.dumps(value)}" for key, value in PROPERTIES.items()),
        **{f"{folder}_rows": rows for folder, rows in largest.items()},
    )
