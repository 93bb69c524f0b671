"""Finds the oldest change that the source of a sync has and the target does not: a look at the source, which starts no Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, Literal

from lakegate.config import ChangeFilesSource, EnvelopeFilesSource, Pipeline, SyncSpec, TableSource
from lakegate.delta.commit_file import Commit
from lakegate.delta.local_files import LocalLog, local_path
from lakegate.errors import LakegateError
from lakegate.syncs.adapters import Source, open_source
from lakegate.syncs.plan import source_position
from lakegate.syncs.plan.apply_protocol import SyncProgress
from lakegate.syncs.ports import ChangeSource, Looks
from lakegate.syncs.sources.files import paths_of

ANSWER_S = 3.0
"""The maximum time for a broker's answer."""
FILES_BYTES_MAX = 256 * 1024 * 1024
"""Larger files are not read for a look."""
Since = int | Literal["level"] | None
"""When the oldest missing change was committed at the source (ms); `level` if none is missing; None if that is unknown."""
LEVEL: Final = "level"


def missing_since(pipeline: Pipeline, spec: SyncSpec, progress: SyncProgress | None, opened: Source | None) -> Since:
    """Looks for the oldest change that the source has and the target does not. A source that does not answer is unknown.

    Args:
        pipeline: The pipeline of the sync's file.
        spec: The sync.
        progress: The target's record of the stream.
        opened: The sync's own source if it is open. It is only used for a table that is not on this machine's disk.
    """
    try:
        held: object = opened
        if isinstance(held, Looks):  # it excludes another reader
            return _of_changes(held.looking(), progress)
        if isinstance(spec.source, TableSource):
            return _of_table(pipeline, spec.source.table, progress, opened)
        if _bytes(spec) > FILES_BYTES_MAX:
            return None
        with contextlib.closing(open_source(pipeline, spec, answer_s=ANSWER_S)) as source:
            return _of_changes(source.looking() if isinstance(source, Looks) else source, progress)
    except (LakegateError, OSError):
        return None


def _of_table(pipeline: Pipeline, name: str, progress: SyncProgress | None, opened: Source | None) -> Since:
    if progress is None or progress.position < 0:
        return None
    feed = None
    if opened is not None:
        from lakegate.syncs.sources.delta_cdf import TableFeed

        feed = opened if isinstance(opened, TableFeed) else None
    place = pipeline.tables[name].path if feed is None else feed.location
    path = None if place is None else local_path(str(place))
    if path is None:
        return None if feed is None else _oldest_commit(feed.commits(progress.position), progress.position)
    log = LocalLog(path)
    if max(log.versions(), default=-1) < progress.position:
        return None  # the table was recreated, or its commits are no longer there
    return _oldest_commit(log.commits(progress.position), progress.position)


def _oldest_commit(commits: Iterable[Commit], after: int) -> Since:
    """Returns when the first of the commits that changes rows was made.

    Args:
        commits: The commits after a version, in order.
        after: This version.
    """
    for commit in commits:
        after += 1
        if commit.version != after:
            return None  # the log was cleaned up
        is_change = any(one.is_data_change for one in commit.added) or any(one.is_data_change for one in commit.removed)
        if commit.has_change_files or is_change:
            return commit.timestamp_ms or None
    return LEVEL


def _of_changes(source: ChangeSource, progress: SyncProgress | None) -> Since:
    place = None if progress is None else progress.place
    for group in source.transactions(-1 if progress is None else progress.position, place):
        rows = [change for change in group if change.op != "mark"]
        if rows:
            return rows[0].committed_at_ms
        place = group[-1].place
    return source_position.waiting_since_commit(place) if source_position.waiting(place) else LEVEL


def _bytes(spec: SyncSpec) -> int:
    match spec.source:
        case ChangeFilesSource(path=path):
            files = [path]
        case EnvelopeFilesSource(path=path, transactions=transactions):
            files = [path, *([transactions] if transactions else [])]
        case _:
            return 0
    return sum(path.stat().st_size for one in files for path in paths_of(one))
