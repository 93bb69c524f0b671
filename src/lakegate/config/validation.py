"""Rules between several sections of a pipeline; each rule records a fault or a note, none raises.

The rules between the keys of one section stand with its keys. A section or a value that could not be read is None here.
A fault lists only what can be a name: what was refused as one may hold a secret, as in `{password:abc}` without a blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lakegate.config.model import Pipeline, TableSpec
from lakegate.config.sections import Written
from lakegate.config.streams import FilesSource, StreamSpec
from lakegate.config.syncs import SyncSpec, TableSource
from lakegate.config.value_types import NAME_PATTERN
from lakegate.config.yaml_nodes import joined, shown_key, shown_path, suggestion
from lakegate.turns.protocol.ordering import After, NoRule, OrderRule, lint


def check(pipeline: Pipeline, written: Written) -> None:
    """Records the contradictions between sections whose values were read one by one, and notes on them."""
    tables: Mapping[str, TableSpec | None] = pipeline.tables or {}
    streams: Mapping[str, StreamSpec | None] = pipeline.streams_by_name or {}
    syncs: Mapping[str, SyncSpec | None] = pipeline.syncs_by_name or {}
    places = list(_places(pipeline, tables, streams, written))
    _check_places(places)
    for name, stream in streams.items():
        if stream is not None:
            _check_stream(stream, tables, written.below("streams", name), written)
            _check_inside(stream, places, written.below("streams", name))
    for name, sync in syncs.items():
        if name in streams:
            what, expected = "a stream has this name, too", "names that `lakegate run` can tell apart"
            written.below("sync").refuse(name, what, expected)
        if sync is not None and isinstance(sync.source, TableSource) and sync.source.table not in tables:
            what = f"there is no table {shown_key(sync.source.table)}"
            written.below("sync", name).refuse("from", what, f"one under tables: {', '.join(_names(tables)) or 'none'}")
    _check_order(streams, tables, written)


def _names(written: Iterable[str]) -> list[str]:
    return [name for name in written if re.fullmatch(NAME_PATTERN, name)]


@dataclass(frozen=True, slots=True)
class _Place:
    """A place that is Lakegate's own, with the key that names it."""

    place: str
    section: Written
    key: str

    @property
    def path(self) -> str:
        return joined(self.section.entries.mark.key, self.key)


def _places(
    pipeline: Pipeline,
    tables: Mapping[str, TableSpec | None],
    streams: Mapping[str, StreamSpec | None],
    written: Written,
) -> Iterator[_Place]:
    if pipeline.storage:
        yield _Place(pipeline.storage, written, "storage")
    for name, table in tables.items():
        if table is not None and table.path is not None:
            yield _Place(table.path, written.below("tables", name), "path")
    for name, table in tables.items():
        if table is not None and table.catalog_name is not None:
            yield _Place(table.catalog_name.lower(), written.below("tables", name), "name")
    for name, stream in streams.items():
        if stream is not None and stream.checkpoint is not None:
            yield _Place(stream.checkpoint, written.below("streams", name), "checkpoint")


def _check_places(places: list[_Place]) -> None:
    """Refuses shared locations: two locks on one table, or two queries on one checkpoint, would protect nothing."""
    taken: dict[str, str] = {}
    for one in places:
        first = taken.setdefault(one.place, one.path)
        if first != one.path:
            one.section.refuse(one.key, f"the same place as {shown_path(first)}", "a place of its own")


def _check_inside(stream: StreamSpec, places: list[_Place], written: Written) -> None:
    """Refuses a table, checkpoint or storage below a source's folder: a stream would read Lakegate's own files."""
    if not isinstance(stream.source, FilesSource) or not stream.source.path:
        return
    inside = stream.source.path.rstrip("/") + "/"
    for one in places:
        below = one.place[len(inside) :] if f"{one.place}/".startswith(inside) else None
        # Spark reads nothing below a hidden folder.
        if below is not None and not any(part.startswith(("_", ".")) for part in below.split("/")):
            what = f"the source's folder holds what {shown_path(one.path)} names"
            written.below("source").refuse("files", what, "a folder of its own")
            return


def _check_stream(stream: StreamSpec, tables: Mapping[str, TableSpec | None], written: Written, file: Written) -> None:
    name: str | None = stream.table
    if name is not None and name not in tables:
        names = _names(tables)
        what = f"there is no table {shown_key(name)}{suggestion(name, names)}"
        written.refuse("table", what, f"one of {', '.join(names)}" if names else "a table under tables:")
    table = tables.get(name or "")
    if table is None or stream.maintain is None or not stream.maintain.zorder_by:
        return
    maintain = written.below("maintain")
    if "cluster_by" in file.below("tables", stream.table):
        maintain.refuse("zorder_by", "the table has cluster_by, which orders its rows already", "one of them")
    partitions = {column.lower() for column in table.partition_by or ()}
    for column in stream.maintain.zorder_by:
        if column.lower() in partitions:
            what = f"{shown_key(column)} is a column that the table is partitioned by"
            maintain.refuse("zorder_by", what, "other columns")


def _check_order(
    streams: Mapping[str, StreamSpec | None], tables: Mapping[str, TableSpec | None], written: Written
) -> None:
    by_lock: dict[str, dict[str, StreamSpec]] = {}
    elsewhere: dict[str, OrderRule] = {}
    for name, stream in streams.items():
        if stream is None or stream.table not in tables or not _names([name]):
            elsewhere[name] = NoRule()
        else:
            table = tables[stream.table]
            by_lock.setdefault(stream.table if table is None else table.lock, {})[name] = stream
    for lock, own in by_lock.items():
        # A stream whose table or name is wrong may belong to this lock: its name is not reported as unknown, too.
        rules = {**{name: stream.order for name, stream in own.items()}, **elsewhere}
        for finding in lint(rules, {name: stream.every_ms for name, stream in own.items()}):
            if finding.severity == "warning":
                written.reader.notes.append(f"lock {lock}: {finding.text}")
                continue
            key = "after" if isinstance(rules[finding.job], After) else "strict"
            expected = f"streams of the lock {lock}: {', '.join(own)}"
            written.below("streams", finding.job).refuse(key, finding.text, expected)
