"""Reads a streaming checkpoint: its query id, its completed batches, and the bytes of a batch's offsets. Writes only notes."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lakegate.errors import Corrupt, InvalidRequest
from lakegate.spark.log_stores import require_checkpoints
from lakegate.stored_json import parsed
from lakegate.turns.protocol.protocol import CheckpointView


class Checkpoint:
    """The checkpoint of one query, by its location, on any file system that Hadoop supports.

    Raises:
        InvalidRequest: It is on S3, and the session would not write it by conditional puts; nothing was started.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        if location.startswith("s3a:"):
            require_checkpoints(spark)
        self.location = location
        jvm: Any = spark._jvm
        self._bulk: Any = jvm.io.github.lakegate.Bulk
        self._new_path: Any = jvm.org.apache.hadoop.fs.Path
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._fs: Any = self._path("").getFileSystem(self._conf)

    def query_id(self) -> str | None:
        """Returns the id of the query that the checkpoint belongs to; None if no query has used it yet.

        Raises:
            Corrupt: there are offsets, or commits, without the file that names the query; or this file cannot be read.
        """
        text = self.read("metadata")
        if text is None:
            if self._batches("offsets") or self._batches("commits"):
                raise Corrupt(
                    "the checkpoint has batches and no file `metadata`; nothing was run",
                    advice="Restore the checkpoint, or start a new one with --new-checkpoint JOB (its rows come again)",
                    path=self.location,
                )
            return None
        try:
            return str(parsed(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                "the checkpoint's file `metadata` cannot be read; nothing was run",
                advice="Restore the checkpoint, or start a new one with --new-checkpoint JOB (its rows come again)",
                path=self.location,
            ) from error

    def look(self) -> CheckpointView:
        """Returns the last batch in the commit log, and whether an earlier run planned a batch and did not finish it.

        A query that starts now runs the open batch again.
        """
        committed = max(self._batches("commits"), default=-1)
        planned = max(self._batches("offsets"), default=-1)
        return CheckpointView(last_committed=committed, is_batch_open=planned > committed)

    def is_committed(self, batch: int) -> bool:
        """Returns True if the batch is in the commit log."""
        return self.read(f"commits/{batch}") is not None

    def offsets_sha256(self, batch: int) -> str | None:
        """Returns the SHA-256 of the bytes of `offsets/<batch>`, hex; None if Spark has deleted the file."""
        data = self.read(f"offsets/{batch}")
        return None if data is None else hashlib.sha256(data).hexdigest()

    def refuse_damage(self, source: Literal["files", "kafka"]) -> None:
        """Checks that the newest offsets and the newest commit can be read, and belong to this kind of source.

        Raises:
            Corrupt: they cannot be read, or belong to another kind; nothing was run.
        """
        planned = max(self._batches("offsets"), default=None)
        committed = max(self._batches("commits"), default=None)
        for name in ([] if planned is None else [f"offsets/{planned}"]) + (
            []
            if committed is None
            else [f"commits/{committed}", *([f"offsets/{committed}"] if committed != planned else [])]
        ):
            data = self.read(name)
            if data is not None and (reason := _damage(data, name, source)) is not None:
                raise Corrupt(
                    f"the checkpoint's file {name} {reason}; nothing was run and nothing was written",
                    advice="Restore the checkpoint from a copy, or start a new one with --new-checkpoint JOB (its rows come again)",
                    path=self.location,
                )

    def has_begun(self) -> bool:
        """Returns True if a batch was planned."""
        return bool(self._batches("offsets"))

    def kafka_offsets(self) -> dict[str, dict[int, int]]:
        """Returns topic → partition → the next offset to read, after the last batch in the commit log; an open batch is read again.

        Empty before the first commit.
        """
        committed = max(self._batches("commits"), default=None)
        return {} if committed is None else self._kafka_offsets(committed)

    def kafka_records(self, batch: int) -> int:
        """Returns the largest number of records that a planned batch of a Kafka source can have.

        The records of a first batch are counted from offset 0, so the number is too large where Kafka has deleted some.
        """
        before = self._kafka_offsets(batch - 1)
        return sum(
            max(0, at - before.get(topic, {}).get(partition, 0))
            for topic, partitions in self._kafka_offsets(batch).items()
            for partition, at in partitions.items()
        )

    def _kafka_offsets(self, batch: int) -> dict[str, dict[int, int]]:
        data = self.read(f"offsets/{batch}")
        if data is None:
            return {}
        said = parsed(data.splitlines()[2])  # `refuse_damage` has checked it
        return {
            topic: {int(number): int(at) for number, at in partitions.items()} for topic, partitions in said.items()
        }

    def note(self, name: str) -> str | None:
        """Returns a note of Lakegate, which is next to Spark's files; None if there is none."""
        data = self.read(name)
        return None if data is None else data.decode(errors="replace")

    def write_note(self, name: str, text: str) -> None:
        """Writes a note; no note of this name may exist."""
        self._bulk.write(self._path(""), name, self._conf, text.encode())

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder of the checkpoint; empty if there is no such folder."""
        return str(self._bulk.names(self._fs, self._path(folder))).split("\n")[:-1]

    def read(self, name: str) -> bytes | None:
        """Returns the bytes of a file of the checkpoint; None if there is no such file."""
        found = self._bulk.read(self._path(name), self._conf)
        return None if found is None else bytes(found)

    def _batches(self, folder: str) -> list[int]:
        return [int(name) for name in self.names(folder) if name.isdecimal()]

    def _path(self, name: str) -> Any:
        return self._new_path(f"{self.location.rstrip('/')}/{name}" if name else self.location)


def _damage(data: bytes, name: str, source: str) -> str | None:
    """Returns the fault of a file of offsets or commits; None if there is none."""
    try:
        lines = data.decode("utf-8").splitlines()
        if not lines:
            return "is empty, as after a power cut"
        if re.fullmatch(r"v\d+", lines[0]) is None:
            return "is damaged: its first line is no version"
        said = [parsed(line) for line in lines[1:] if line != "-"]
    except (ValueError, RecursionError):
        return "is damaged or cut off"
    if not all(isinstance(one, dict) for one in said):
        return "is damaged"
    if name.startswith("commits"):
        return None
    if len(lines) < 3:
        return "is cut off"
    offset = said[-1]
    if source == "files":
        is_fitting = isinstance(offset.get("logOffset"), int)
        return (
            None if is_fitting else "is of another source than files: name the checkpoint that belongs to this stream"
        )
    is_fitting = all(
        isinstance(partitions, dict) and all(isinstance(at, int) for at in partitions.values())
        for partitions in offset.values()
    )
    return None if is_fitting else "is of another source than Kafka: name the checkpoint that belongs to this stream"


def location_of(writer: DataStreamWriter) -> str:
    """Returns the checkpoint location in the options of a writer.

    Raises:
        InvalidRequest: the option is missing; a query without a fixed checkpoint cannot be run again.
    """
    location = option_of(writer, "checkpointLocation")
    if location is None:
        raise InvalidRequest(
            "the query has no checkpointLocation; it was not started",
            advice='Give it one: .option("checkpointLocation", PATH)',
        )
    return location


def option_of(writer: DataStreamWriter, name: str) -> str | None:
    """Returns an option of a writer; None if it is not set."""
    # PySpark has no getter, and the checkpoint's location must be known before the query starts: its content *before* the start
    # shows which batch is a replay.
    jwriter: Any = writer._jwrite
    field = jwriter.getClass().getDeclaredField("extraOptions")
    field.setAccessible(True)
    found = field.get(jwriter).get(name)
    return None if found.isEmpty() else str(found.get())
