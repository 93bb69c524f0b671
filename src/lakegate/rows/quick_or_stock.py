"""Runs a statement without a Spark job, or with stock Delta; to verify the first way, in both ways.

Two commits of a statement are equal if they leave the same rows at the same places, write the same rows to new files and to the
change feed, and describe themselves equally. Names, number and sizes of new files may differ: stock Delta writes a file per task.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from lakegate.delta.actions import Body, Captured, Committed, vector_of
from lakegate.delta.gate import Ran
from lakegate.errors import Corrupt
from lakegate.rows import quick
from lakegate.rows.driver_state import Shared
from lakegate.rows.row_reader import TableRows
from lakegate.rows.statement import Dml

OF_FILES = re.compile(r"Bytes|TimeMs|^num(Target)?(Added|Change)?Files|^numAddedChangeFiles|FilesAdded$")
"""Metrics that depend on the number, size and time of new files."""
COLUMN_NUMBER = re.compile(r"#\d+L?")
"""The number of a column in the text of a plan, which each analysis gives."""
JOINS: Mapping[str, Callable[[Any, Any], Any]] = {"minValues": min, "maxValues": max, "nullCount": operator.add}
"""How the statistics of two files become those of both."""
OF_COMMIT = ("operation", "operationParameters", "isolationLevel", "isBlindAppend", "readVersion")


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of a whole execution."""

    ran: Ran
    why_stock: str | None
    """Why stock Delta ran it; None if the driver did."""


def run(shared: Shared, dml: Dml, *, statement_id: str, is_staged: bool) -> Run:
    """Runs a statement as the setting `spark.lakegate.quick` says.

    Args:
        shared: The state of the driver.
        dml: The statement.
        statement_id: The id of the statement at the gate.
        is_staged: Its commit is kept in any case.

    Raises:
        InvalidRequest: The setting has an unknown value.
        Corrupt: Both ways were compared, and differ; nothing was written.
        Exception: Any error that the statement itself raises.
    """
    why: str | None = None

    def execute(*, is_alone: bool = False) -> object:
        nonlocal why
        why = quick.execute(dml, later=shared.afterwards)
        if why is None or is_alone:
            return None
        if dml.before_stock is not None:
            dml.before_stock(why)
        return dml.execute()

    if quick.setting(dml) != quick.VERIFY:
        ran = shared.gate.run(execute, statement_id=statement_id, is_staged=is_staged, table=dml.table)
        return Run(ran, why)

    def quickly() -> Captured | Committed:
        dml.forget()
        alone = partial(execute, is_alone=True)
        return shared.gate.run(alone, statement_id=statement_id, is_staged=True, table=dml.table).commit

    computed = quickly()
    if why is not None and not why.startswith(quick.FAILED):
        return Run(shared.gate.run(dml.execute, statement_id=statement_id, is_staged=is_staged, table=dml.table), why)
    try:
        ran = shared.gate.run(dml.execute, statement_id=statement_id, is_staged=True, table=dml.table)
    except Exception as error:
        if why is None and isinstance(computed, Captured) and _is_newest(dml, computed):
            raise _differs(dml, "its outcome", computed, error) from error
        raise
    if why is not None:
        raise _differs(dml, "its outcome", why, ran.commit)
    difference = _difference(shared, dml, computed, ran.commit)
    # A statement that reads the time, or a source that gives other rows each time, differs from itself.
    if difference is not None and _difference(shared, dml, computed, quickly()) is None:
        raise _differs(dml, *difference)
    return Run(ran, why)


def _is_newest(dml: Dml, commit: Captured) -> bool:
    return int(dml.jvm.delta_log(dml.table).unsafeVolatileSnapshot().version()) == commit.version


def _differs(dml: Dml, what: str, one: object, other: object) -> Corrupt:
    return Corrupt(
        "a quick execution differs from the same statement by stock Delta; nothing was written",
        advice=f"Set {quick.QUICK_CONF}=off, and report the statement",
        table=dml.table,
        differs=what,
        quick=_short(one),
        stock=_short(other),
    )


def _difference(
    shared: Shared, dml: Dml, quickly: Captured | Committed, stock: Captured | Committed
) -> tuple[str, object, object] | None:
    """Returns the first part in which two commits of a statement differ, and both values; None also if their snapshots differ."""
    if not (isinstance(quickly, Captured) and isinstance(stock, Captured)):
        one = quickly if isinstance(quickly, Captured) else stock
        is_same = isinstance(quickly, Captured) == isinstance(stock, Captured)
        if is_same or not (isinstance(one, Captured) and _is_newest(dml, one)):
            return None
        return "whether there is a commit", quickly, stock
    if quickly.version != stock.version:
        return None
    log = dml.jvm.delta_log(dml.table)
    rows, root = TableRows(dml.jvm, log, dml, shared.remembered), str(log.dataPath())
    for what, described in (
        ("the description of the commit", _described),
        ("the files that it removes", _removed),
        ("the rows that it marks as deleted", lambda commit: _marked(rows, commit)),
        ("the rows that it adds", lambda commit: _added(rows, commit)),
        ("the change feed", lambda commit: _fed(dml, root, commit)),
        ("the statistics of new files", _statistics),
        ("other actions", _others),
    ):
        pair = described(quickly), described(stock)
        if pair[0] != pair[1]:
            return what, *pair
    return None


def _described(commit: Captured) -> object:
    info = commit.info
    said = {name: COLUMN_NUMBER.sub("#", json.dumps(info.get(name), sort_keys=True)) for name in OF_COMMIT}
    metrics = info.get("operationMetrics") or {}
    # Stock Delta counts no source rows where Spark finds, while planning, that the condition of a MERGE cannot hold.
    kept = metrics.keys() - {"numSourceRows"}
    return said, {name: metrics[name] for name in kept if not OF_FILES.search(name)}


def _removed(commit: Captured) -> object:
    return sorted((file["path"], vector_of(file) or "", file.get("dataChange")) for file in _bodies(commit, "remove"))


def _marked(rows: TableRows, commit: Captured) -> object:
    """Returns the files of the table that stay with other vectors: path → marked rows."""
    return {
        file["path"]: rows.read_vector(file["deletionVector"])
        for file in _bodies(commit, "add")
        if file.get("deletionVector") is not None
    }


def _new(commit: Captured) -> Sequence[Body]:
    return [file for file in _bodies(commit, "add") if file.get("deletionVector") is None]


def _added(rows: TableRows, commit: Captured) -> object:
    files = _new(commit)
    # As texts, which tell -0.0 from 0.0, and in which NaN is equal to itself.
    return sorted(map(str, rows.frame(files).collect())) if files else []


def _fed(dml: Dml, root: str, commit: Captured) -> object:
    return sorted(
        (json.dumps(file["partitionValues"], sort_keys=True), str(row))
        for file in _bodies(commit, "cdc")
        for row in dml.session.read.parquet(f"{root}/{unquote(file['path'])}").collect()
    )


def _statistics(commit: Captured) -> object:
    """Returns the statistics of all new files of a partition together."""
    found: dict[str, dict[str, Any]] = {}
    for file in _new(commit):
        statistics = json.loads(file.get("stats") or "{}")
        of = found.setdefault(json.dumps(file["partitionValues"], sort_keys=True), {"tight": set(), "numRecords": 0})
        of["numRecords"] += statistics.get("numRecords", 0)
        of["tight"].add(statistics.get("tightBounds", True))
        for part, join in JOINS.items():
            for name, value in _flat(statistics.get(part) or {}):
                known = f"{part}.{name}"
                of[known] = join(of[known], value) if known in of else value
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, float("inf") if value == "NaN" else value  # Spark's order


def _others(commit: Captured) -> object:
    return sorted(
        json.dumps({action.kind: {k: v for k, v in action.body.items() if k != "lastUpdated"}}, sort_keys=True)
        for action in commit.actions
        if action.kind not in ("add", "remove", "cdc")
    )


def _bodies(commit: Captured, kind: str) -> Iterable[Body]:
    return (action.body for action in commit.actions if action.kind == kind)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 500 else f"{text[:500]}…"
