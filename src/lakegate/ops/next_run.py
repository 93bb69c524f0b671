"""Finds what the next run of each stream would read and write, from sources and checkpoints. Reads no records; needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakegate.config import Append, FilesSource, KafkaSource, Maintain, Pipeline, StreamSpec
from lakegate.delta.local_files import LocalLog, local_path
from lakegate.errors import LakegateError
from lakegate.ops.inspection import LagStatus, checkpoint_of, is_far, kept_of, lags_of, requests_of, status_of
from lakegate.spark.source_files import TakenFiles, listing, passed_over

FOOTERS_MAX = 1_000
"""The rows of more Parquet files are not counted: a count reads the footer of each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """The work that waits for one stream. None for a count: unknown, see `note`, or not of this kind of source."""

    job: str
    kind: str
    writes: tuple[str, ...]
    """Paths of tables, or names in the catalog."""
    version: int | None
    """The version of the last of them; None if it does not exist, or is not on this machine's disk."""
    begun_batch: int | None = None
    """A micro-batch that an earlier run began and did not finish; it comes first."""
    files: int | None = None
    size_bytes: int | None = None
    rows: int | None = None
    records: int | None = None
    """Records of Kafka topics."""
    waiting_requests: int | None = None
    """Stored requests that wait for rows to change."""
    paused: str | None = None
    note: str | None = None


def next_runs(pipeline: Pipeline, names: Sequence[str]) -> list[NextRun]:
    """Returns the waiting work of the named streams, in their order.

    Raises:
        LakegateError: The store of turns, or a checkpoint, cannot be read.
    """
    lags = {lag.job: lag for lag in lags_of(pipeline)}
    kept = {one.job: sum(state.requests for state in one.kept if state.state == "waiting") for one in kept_of(pipeline)}
    paused = {job.job: job.paused for lock in status_of(pipeline) for job in lock.jobs}
    found = []
    for name in names:
        stream = pipeline.stream(name)
        table = pipeline.table_of(stream)
        target = table.path or table.catalog_name or table.name
        place = local_path(target) if table.path is not None else None
        one = NextRun(
            job=name,
            kind=type(stream.kind).__name__.lower(),
            writes=(target,) if isinstance(stream.kind, Append | Maintain) else (requests_of(pipeline, stream), target),
            version=None if place is None else max(LocalLog(place).versions(), default=None),
            waiting_requests=kept.get(name),
            paused=paused.get(name),
        )
        found.append(_with_source(one, stream, lags.get(name)))
    return found


def _with_source(one: NextRun, stream: StreamSpec, lag: LagStatus | None) -> NextRun:
    """Adds what waits in the source of the stream."""
    checkpoint = checkpoint_of(stream) if stream.source is not None else None
    if checkpoint is not None:
        planned, committed = checkpoint.planned(), checkpoint.committed()
        is_begun = bool(planned) and planned[-1] not in committed[-1:]
        one = replace(one, begun_batch=planned[-1] if is_begun else None)
    match stream.source:
        case FilesSource() as source:
            if checkpoint is None or is_far(stream):
                return replace(one, note="its files or its checkpoint are not on this machine's disk")
            try:
                taken = TakenFiles(checkpoint.path).refresh()
                there = listing(source.path)
            except LakegateError as error:
                return replace(one, note=error.message)
            waiting = [
                path
                for part in passed_over(there, taken, is_drained=False)
                if part.reason == "waiting"
                for path in part.files
            ]
            size_bytes = sum(there.files[path].size_bytes for path in waiting)
            rows = _rows(waiting) if source.format == "parquet" else None
            return replace(one, files=len(waiting), size_bytes=size_bytes, rows=rows)
        case KafkaSource():
            if lag is None or lag.note is not None:
                return replace(one, note=None if lag is None else lag.note)
            return replace(one, records=sum(topic.behind for topic in lag.topics))
        case None:
            return one


def _rows(paths: Sequence[str]) -> int | None:
    """Returns the number of rows of Parquet files; None if there are too many files, or one cannot be read."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    if len(paths) > FOOTERS_MAX:
        return None
    try:
        return sum(int(read_metadata(path).num_rows) for path in paths)
    except (OSError, ArrowException):
        return None
