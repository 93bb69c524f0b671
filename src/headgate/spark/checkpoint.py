"""Reads a streaming checkpoint: whose it is, which batches are done, and the bytes of a batch's offsets. Writes nothing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.core.turns.protocol import CheckpointView
from headgate.errors import Corrupt, InvalidRequest


class Checkpoint:
    """The checkpoint of one query, by its location, on any file system that Hadoop knows."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location.rstrip("/")
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._fs: Any = self._path("").getFileSystem(self._conf)

    def query_id(self) -> str | None:
        """The id of the query that the checkpoint belongs to; None if no query has used it yet.

        Raises:
            Corrupt: there are offsets, or commits, without the file that says whose they are.
        """
        text = self._read("metadata")
        if text is None:
            if self._batches("offsets") or self._batches("commits"):
                raise Corrupt(
                    "the checkpoint has batches and no file `metadata`; nothing was run",
                    advice="Restore the checkpoint, or start a new one with --new-checkpoint JOB (its rows come again)",
                    path=self.location,
                )
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                "the checkpoint's file `metadata` cannot be read; nothing was run", path=self.location
            ) from error

    def view(self) -> CheckpointView:
        """Which batch is the last in the commit log, and whether a planned one is open."""
        committed = max(self._batches("commits"), default=-1)
        return CheckpointView(
            last_committed=committed, is_batch_open=max(self._batches("offsets"), default=-1) > committed
        )

    def open_batch(self) -> int | None:
        """The batch that an earlier run planned and did not finish; a query started now runs it again."""
        planned = max(self._batches("offsets"), default=-1)
        return planned if planned > max(self._batches("commits"), default=-1) else None

    def committed_batches(self) -> tuple[int, ...]:
        """Batches in the commit log, rising. Spark keeps the last hundred or so."""
        return tuple(sorted(self._batches("commits")))

    def offsets_sha256(self, batch: int) -> str | None:
        """SHA-256 of the bytes of `offsets/<batch>`, hex; None if Spark has cleaned it away."""
        data = self._read(f"offsets/{batch}")
        return None if data is None else hashlib.sha256(data).hexdigest()

    def _batches(self, folder: str) -> list[int]:
        path = self._path(folder)
        if not self._fs.exists(path):
            return []
        names = [status.getPath().getName() for status in self._fs.listStatus(path)]
        return [int(name) for name in names if name.isdecimal()]

    def _read(self, name: str) -> bytes | None:
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}" if name else self.location)


def location_of(writer: DataStreamWriter) -> str:
    """The checkpoint location that a writer was given by its option.

    Raises:
        InvalidRequest: it was given none; a query without a fixed checkpoint cannot be run again.
    """
    # PySpark offers no getter, and the place must be known before the query starts: which batch is a replay is told by
    # what is there *before*.
    jwriter: Any = writer._jwrite
    field = jwriter.getClass().getDeclaredField("extraOptions")
    field.setAccessible(True)
    found = field.get(jwriter).get("checkpointLocation")
    if found.isEmpty():
        raise InvalidRequest(
            "the query has no checkpointLocation; it was not started",
            advice='Give it one: .option("checkpointLocation", PATH)',
        )
    return str(found.get())
