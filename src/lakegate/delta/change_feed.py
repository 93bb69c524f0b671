"""Reads the rows that small commits changed, as Delta's change data feed gives them, without a Spark job.

Source of the rules: Delta's `CDCReader.changesToDF`, Delta 4.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql import DataFrame, SparkSession

from lakegate.delta.actions import Action, Body, parse
from lakegate.delta.jvm import JVM_ERRORS, Jvm
from lakegate.delta.table_log import DeltaTableLog, LogGone
from lakegate.ids import TableLocation, Version

NO_ROWS = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
"""Metrics of a MERGE. If all of them are 0, the feed has no rows of it, although it may have rewritten files."""
COMMITS_MAX = 128
"""More commits are read by Spark, together."""


class ReadBySpark(Exception):
    """Only Spark can read the rows of a commit."""


def files_of(version: Version, actions: Sequence[Action]) -> Iterator[str]:
    """Yields a line for each file of a commit that holds changed rows; for the form see `FeedRows.of`.

    A commit with files of changes has its rows there. Otherwise an added file has inserted rows, and a removed file deleted ones;
    where both are the same file, its rows are those that only one of the two vectors marks.

    Raises:
        ReadBySpark: The commit changes the table's definition, or its files are not described.
    """
    bodies: dict[str, list[Body]] = {}
    for action in actions:
        bodies.setdefault(action.kind, []).append(action.body)
    if bodies.keys() & {"metaData", "protocol"}:
        raise ReadBySpark
    if changed := bodies.get("cdc"):
        yield from (_line(version, "", file) for file in changed)
        return
    if any(_has_no_rows(info) for info in bodies.get("commitInfo", ())):
        return
    added, removed = (
        {file["path"]: file for file in bodies.get(kind, ()) if file.get("dataChange")} for kind in ("add", "remove")
    )
    if any("size" not in file or "partitionValues" not in file for file in removed.values()):
        raise ReadBySpark
    for path in {**removed, **added}:
        before, after = removed.get(path), added.get(path)
        if before is not None and (after is None or "deletionVector" in after):
            yield _line(version, "false", before, after)
        if after is not None and (before is None or "deletionVector" in before):
            yield _line(version, "true", after, before)


def _has_no_rows(info: Body) -> bool:
    metrics = info.get("operationMetrics") or {}
    return info.get("operation") == "MERGE" and all(metrics.get(name) == "0" for name in NO_ROWS)


def _line(version: Version, has_come: str, file: Body, marks: Body | None = None) -> str:
    return "\t".join((str(version), has_come, _add(file), "" if marks is None else _add(marks)))


def _add(file: Body) -> str:
    kept = {"path": file["path"], "partitionValues": file["partitionValues"], "size": file["size"]}
    if file.get("deletionVector") is not None:
        kept["deletionVector"] = file["deletionVector"]
    return json.dumps({"add": {**kept, "modificationTime": 0, "dataChange": True}})


def changed_rows(
    session: SparkSession,
    log: DeltaTableLog,
    table: TableLocation,
    after: Version,
    upto: Version,
    names: tuple[str, str],
) -> DataFrame | None:
    """Returns the rows that the commits `after` + 1 … `upto` changed, which are in the driver; None if Spark has to read them.

    Args:
        session: The session.
        log: Reads the table's log; it has read the table's newest version.
        table: The table.
        after: The version before the first commit.
        upto: The version of the last commit.
        names: Names for two columns behind those of the table: the version of the commit, and whether the row was inserted.

    Raises:
        Unavailable: The log could not be read.
    """
    jvm = Jvm(session)
    try:
        delta_log = jvm.delta_log(table)
        snapshot = delta_log.unsafeVolatileSnapshot()
        newest = Version(snapshot.version())
        if newest - after > COMMITS_MAX:
            return None
        lines = list(_files(log, table, after, upto, newest))
        with jvm.active():
            rows = jvm.feed.of(jvm.jsession, delta_log, snapshot, "\n".join(lines), *names)
            return None if rows is None else jvm.frame(rows)
    except (ReadBySpark, LogGone, *JVM_ERRORS):
        return None


def _files(log: DeltaTableLog, table: TableLocation, after: Version, upto: Version, newest: Version) -> Iterable[str]:
    for version, text in log.texts(table, after, max(upto, newest)):
        if version <= upto:
            yield from files_of(version, parse(text))
        elif parse(text, ("metaData", "protocol")):
            raise ReadBySpark
