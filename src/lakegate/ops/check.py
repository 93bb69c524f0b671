"""`lakegate check` without Spark: storage, turns, ledger, checkpoints, and the folders that the file names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from lakegate.config import FilesSource, Pipeline, StreamSpec, TableSpec
from lakegate.delta.local_files import LocalCheckpoint, is_taken, local_path, sqlite_file, writable
from lakegate.errors import LakegateError, Unavailable
from lakegate.ops.finding import Finding, of_error
from lakegate.spark.source_files import globbed, is_glob
from lakegate.streams.checkpoint_owner import checkpoint_check
from lakegate.telemetry.events import TurnEnded
from lakegate.turns.ports import TurnStore

OFFSETS_VERSION = "v1"
"""First line of the offsets that this Spark writes."""


class Places:
    """The locations of keys in the file: key → `lakegate.yml:12`, or the key itself where the value is a default."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._origins = {entry.key: entry.origin for entry in pipeline.entries}

    def of(self, key: str) -> str:
        """Returns the key, preceded by its line if it is in the file."""
        origin = self._origins.get(key)
        if origin is None:  # a part of a list or a mapping has the line of its first entry
            origin = next((at for name, at in self._origins.items() if name.startswith((f"{key}.", f"{key}["))), None)
        return key if origin in (None, "default", "Python") else f"{origin}: {key}"


def notes(pipeline: Pipeline) -> list[Finding]:
    """Returns notes and warnings about the file itself: warnings for the costs of the order, notes for the rest."""
    return [
        Finding(
            level="warning" if text.startswith("lock ") else "note",
            where=text.partition(":")[0],
            what=text.partition(":")[2].strip(),
        )
        for text in pipeline.notes
    ]


def storage(pipeline: Pipeline, places: Places) -> list[Finding]:
    """Checks that the storage, and the folder of the turns, are writable."""
    wanted = {"storage": pipeline.storage}
    turns_file = sqlite_file(pipeline.coordinator.url)
    if turns_file is not None:
        wanted["coordinator.url"] = str(turns_file.parent)
    found = []
    for key, folder in wanted.items():
        reason = writable(folder)
        if reason is not None and (key == "storage" or folder != pipeline.storage):
            error = Unavailable(reason, advice="Make it writable, or name another folder")
            found += of_error(error, places.of(key))
    return found


def turns(
    pipeline: Pipeline, open_store: Callable[[], AbstractContextManager[TurnStore | None]], places: Places
) -> list[Finding]:
    """Checks that the store of turns answers, and that this version can read it."""
    found = []
    where = places.of("coordinator.url")
    try:
        with open_store() as store:
            for lock in dict.fromkeys(table.lock for table in pipeline.tables.values()):
                if store is None:
                    continue
                record = store.read(lock).record
                if record is not None and record.in_doubt:
                    count = len(record.in_doubt)
                    what = f"{count} unclean turn{'s' if count > 1 else ''} not fenced yet; the next turn fences them"
                    found.append(Finding(level="note", where=f"lock {lock}", what=what))
                held = None if record is None else record.holder
                if held is not None and held.session not in store.live_sessions(lock).ids:
                    what = f"{held.job} has the turn and its process (pid {held.pid}) is gone; the next job closes it"
                    found.append(Finding(level="note", where=f"lock {lock}", what=what))
    except LakegateError as error:
        found += of_error(error, where)
    return found


def source(stream: StreamSpec, places: Places) -> list[Finding]:
    """Checks that a folder of files exists and is not empty."""
    if not isinstance(stream.source, FilesSource):
        return []
    path = local_path(stream.source.path)
    if path is None:
        return []
    where = places.of(f"streams.{stream.name}.source.files")
    if is_glob(stream.source.path):
        if not globbed(str(path)):
            return [Finding(level="note", where=where, what=f"no file matches {path} yet")]
        return []
    if not path.exists():
        error = Unavailable(f"{path} does not exist", advice="Make it, or correct `files`")
        return of_error(error, where)
    if path.is_dir() and not any(path.iterdir()):
        return [Finding(level="note", where=where, what=f"{path} is empty so far")]
    return []


def checkpoint(stream: StreamSpec, rows: Iterable[TurnEnded], places: Places) -> list[Finding]:
    """Checks that the checkpoint is readable, and the one that the ledger recorded for the job."""
    if stream.checkpoint is None:
        return []
    where = places.of(f"streams.{stream.name}.checkpoint")
    path = local_path(stream.checkpoint)
    if path is None:
        return [Finding(level="note", where=where, what="not on this machine's disk, so not checked")]
    there = LocalCheckpoint(path)
    try:
        check = checkpoint_check(rows, job=stream.name, location=stream.checkpoint, is_new_allowed=False)
        check(there.query_id())
    except LakegateError as error:
        return of_error(error, where)
    planned = there.planned()
    if planned and not there.committed() and len(planned) > 1:
        what = "several batches are planned and none is in the commit log: part of the checkpoint was deleted"
        return [Finding(level="fault", where=where, what=what, advice="Restore it", exit_code=2)]
    if planned:
        first = (path / "offsets" / str(planned[-1])).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        if first != OFFSETS_VERSION:
            what = f"its offsets are of the format {first[:20]!r}, which another version of Spark wrote"
            return [Finding(level="fault", where=where, what=what, advice="Use that version", exit_code=2)]
    return []


def table_folder(table: TableSpec, places: Places) -> list[Finding]:
    """Checks that the path is free, or a Delta table."""
    path = None if table.path is None else local_path(table.path)
    if path is None or not is_taken(path):
        return []
    what, advice = (
        f"{path} holds other files and is no Delta table",
        "Name another folder, or convert it: CONVERT TO DELTA",
    )
    where = places.of(f"tables.{table.name}.path")
    return [Finding(level="fault", where=where, what=what, advice=advice, exit_code=2)]
