"""Small tables of each kind, statements on them as SQL and as plain Python, and statements that rebase onto each other's commits.

A table that a statement is computed on is copied as a folder, which is an independent table with the same versions. So a
statement is computed once, and rebased onto one winning commit in one copy and onto another in another copy.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyarrow import parquet
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from lakegate.delta import deletion_vectors
from lakegate.delta.actions import Action, Body, Captured, parse
from lakegate.delta.deletion_vectors import identity
from lakegate.rows.committer import Publisher, Staged
from lakegate.rows.result import Result
from lakegate.rows.sql import statement
from lakegate.rows.statement import Dml

# ------------------------------------------------------------------------------------------------------------ the tables

LAYOUT = "id BIGINT, v BIGINT, p INT, n BIGINT, s STRING"
COLUMNS = "id, v, p, n, s"
VECTORS = {"enableDeletionVectors": "true"}


class Row(NamedTuple):
    """A row: conditions test `v`; `n` shows in which order statements changed the row."""

    id: int
    v: int | None
    p: int
    n: int
    s: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of table."""

    name: str
    properties: Mapping[str, str] = field(default_factory=lambda: VECTORS)
    clause: str = ""
    more: str = ""
    """An additional column of the table."""
    constraint: str = ""

    @property
    def tracks_rows(self) -> bool:
        """Returns whether its rows have ids."""
        return "enableRowTracking" in self.properties

    @property
    def has_feed(self) -> bool:
        """Returns whether it has a change data feed."""
        return "enableChangeDataFeed" in self.properties


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="vectors"),
        Kind(name="no-vectors", properties={"enableDeletionVectors": "false"}),
        Kind(name="feed", properties={**VECTORS, "enableChangeDataFeed": "true"}),
        Kind(name="row-ids", properties={**VECTORS, "enableRowTracking": "true"}),
        Kind(
            name="generated",
            more="g BIGINT GENERATED ALWAYS AS (v * 2)",
            constraint="id >= 0 AND coalesce(v, 0) < 1000",
        ),
        Kind(name="partitioned", clause="PARTITIONED BY (p)"),
        Kind(name="mapping", properties={**VECTORS, "columnMapping.mode": "name"}),
        Kind(name="timestamps", properties={**VECTORS, "enableInCommitTimestamps": "true"}),
        Kind(name="clustered", clause="CLUSTER BY (v)"),
        Kind(
            name="partitioned, feed, timestamps",
            properties={**VECTORS, "enableChangeDataFeed": "true", "enableInCommitTimestamps": "true"},
            clause="PARTITIONED BY (p)",
        ),
        Kind(
            name="clustered, row-ids, mapping",
            properties={**VECTORS, "enableRowTracking": "true", "columnMapping.mode": "name"},
            clause="CLUSTER BY (v)",
        ),
    )
}
ROWS_PER_FILE = 16
MARKED = (5, 6)
"""Ids of rows of the first file that its vector marks."""


def first_rows() -> list[Row]:
    """Returns the rows in their order: some occur twice, within a file and in two files; some values are NULL."""
    rows = [Row(i, i % 5, i % 2, 1, None if i % 7 == 3 else f"s{i % 3}") for i in range(40)]
    twice = rows[3]
    return [*rows[:4], twice, *rows[4:18], rows[17], *rows[18:], twice, Row(39, None, 1, 1, None)]


def make(spark: SparkSession, kind: Kind, path: Path) -> None:
    """Makes a table of 42 rows in three files (two in each partition), the first of which has a vector."""
    columns = f"{LAYOUT}, {kind.more}" if kind.more else LAYOUT
    properties = ", ".join(f"'delta.{key}' = '{value}'" for key, value in kind.properties.items())
    spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta {kind.clause} TBLPROPERTIES ({properties})")
    if kind.constraint:
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT c CHECK ({kind.constraint})")
    rows = spark.createDataFrame(first_rows(), LAYOUT).coalesce(1)
    rows.write.format("delta").mode("append").option("maxRecordsPerFile", ROWS_PER_FILE).save(str(path))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id IN ({', '.join(map(str, MARKED))})")


# -------------------------------------------------------------------------------------------------------- the statements


@dataclass(frozen=True, slots=True)
class Parts:
    """The rows that a statement concerns."""

    values: tuple[int, ...]
    """Values of `v` that its condition matches."""
    to: int
    """New value of `v`, in rows that it changes or inserts."""
    ids: tuple[int, ...]
    """Ids of rows that it inserts."""
    salt: int
    """Distinguishes its changes to `n`, and its rows, from those of another statement."""


Rows = dict[int, Row]
"""Key → row: the row id on tables that track rows. A row that a statement inserts has a key below zero."""


@dataclass(frozen=True, slots=True)
class Form:
    """A statement as SQL on the table `{t}`, and its effect on rows."""

    name: str
    sql: Callable[[Parts, Kind], str]
    serial: Callable[[Parts, Rows], Rows]

    def text(self, parts: Parts, kind: Kind, path: Path) -> str:
        """Returns the SQL of the statement on a table."""
        return self.sql(parts, kind).format(t=f"delta.`{path}`")


def _of(parts: Parts) -> str:
    return f"({', '.join(map(str, parts.values))})"


def _set(parts: Parts, t: str = "") -> str:
    return f"{t}v = {parts.to}, {t}p = 1 - {t}p, {t}n = {t}n * 3 + {parts.salt}"


def _changed(parts: Parts, row: Row) -> Row:
    return row._replace(v=parts.to, p=1 - row.p, n=row.n * 3 + parts.salt)


def _each(rows: Rows, becomes: Callable[[Row], Row | None]) -> Rows:
    return {id_: then for id_, row in rows.items() if (then := becomes(row)) is not None}


def _with(rows: Rows, new: Sequence[Row]) -> Rows:
    return {**rows, **{-1 - place: row for place, row in enumerate(new)}}


def _new(parts: Parts, ids: Sequence[int]) -> list[Row]:
    return [Row(id_, parts.to, id_ % 2, parts.salt, "new") for id_ in ids]


def _updated(parts: Parts, rows: Rows) -> Rows:
    return _each(rows, lambda row: _changed(parts, row) if row.v in parts.values else row)


def _deleted(parts: Parts, rows: Rows) -> Rows:
    return _each(rows, lambda row: None if row.v in parts.values else row)


def _merged_ids(parts: Parts) -> tuple[int, ...]:
    """Returns keys of a MERGE that inserts: some existing keys, which a winning commit may delete, and new ones."""
    return (parts.values[-1] + 10, parts.values[-1] + 15, *parts.ids)


def _merge_insert(parts: Parts, kind: Kind) -> str:
    keys = ", ".join(f"({id_}L)" for id_ in _merged_ids(parts))
    values = f"s.id, {parts.to}, CAST(s.id % 2 AS INT), {parts.salt}, 'new'"
    return (
        f"MERGE INTO {{t}} t USING (SELECT * FROM VALUES {keys} AS x(id)) s ON t.id = s.id "
        f"WHEN NOT MATCHED THEN INSERT ({COLUMNS}) VALUES ({values})"
    )


def _inserted(parts: Parts, rows: Rows) -> Rows:
    there = {row.id for row in rows.values()}
    return _with(rows, _new(parts, [id_ for id_ in _merged_ids(parts) if id_ not in there]))


def _merge_by_source(parts: Parts, kind: Kind) -> str:
    return (
        f"MERGE INTO {{t}} t USING (SELECT id FROM range(0, 200, 2)) s ON t.id = s.id "
        f"WHEN MATCHED AND t.v IN {_of(parts)} THEN UPDATE SET {_set(parts)} "
        f"WHEN NOT MATCHED BY SOURCE AND t.v IN {_of(parts)} THEN DELETE"
    )


def _by_source(parts: Parts, rows: Rows) -> Rows:
    def becomes(row: Row) -> Row | None:
        if row.v not in parts.values:
            return row
        return _changed(parts, row) if row.id % 2 == 0 and row.id < 200 else None

    return _each(rows, becomes)


def _copied(parts: Parts, rows: Rows) -> Rows:
    chosen = [row for row in rows.values() if row.v in parts.values]
    return _with(rows, [row._replace(id=row.id + 1000 * parts.salt) for row in chosen])


def _replaced(parts: Parts, kind: Kind) -> str:
    value = parts.values[0]
    more = f", {value * 2}L" if kind.more else ""
    rows = ", ".join(f"({i}L, {value}L, {i % 2}, {parts.salt}L, 'new'{more})" for i in parts.ids)
    return f"INSERT INTO {{t}} REPLACE WHERE v IN {_of(parts)} VALUES {rows}"


def _new_in_condition(parts: Parts, rows: Rows) -> Rows:
    return _with(_deleted(parts, rows), _new(replace(parts, to=parts.values[0]), parts.ids))


def _appended(parts: Parts, kind: Kind) -> str:
    rows = ", ".join(f"({i}L, {parts.to}L, {i % 2}, {parts.salt}L, 'new')" for i in parts.ids)
    return f"INSERT INTO {{t}} ({COLUMNS}) VALUES {rows}"


FORMS = {
    form.name: form
    for form in (
        Form("DELETE", lambda parts, kind: f"DELETE FROM {{t}} WHERE v IN {_of(parts)}", _deleted),
        Form("UPDATE", lambda parts, kind: f"UPDATE {{t}} SET {_set(parts)} WHERE v IN {_of(parts)}", _updated),
        Form(
            "MERGE, update",
            lambda parts, kind: (
                f"MERGE INTO {{t}} t USING (SELECT explode(array({', '.join(map(str, parts.values))})) AS v) s ON t.v = s.v "
                f"WHEN MATCHED THEN UPDATE SET {_set(parts, 't.')}"
            ),
            _updated,
        ),
        Form(
            "MERGE, delete",
            lambda parts, kind: (
                f"MERGE INTO {{t}} t USING (SELECT id FROM range(0, 5000)) s ON t.id = s.id AND t.v IN {_of(parts)} "
                "WHEN MATCHED THEN DELETE"
            ),
            _deleted,
        ),
        Form("MERGE, insert", _merge_insert, _inserted),
        Form("MERGE, not matched by source", _merge_by_source, _by_source),
        Form(
            "INSERT … SELECT from itself",
            lambda parts, kind: (
                f"INSERT INTO {{t}} ({COLUMNS}) SELECT id + {1000 * parts.salt}, v, p, n, s FROM {{t}} WHERE v IN {_of(parts)}"
            ),
            _copied,
        ),
        Form("INSERT", _appended, lambda parts, rows: _with(rows, _new(parts, parts.ids))),
        Form("INSERT REPLACE WHERE", _replaced, _new_in_condition),
        Form("OPTIMIZE", lambda parts, kind: "OPTIMIZE {t}", lambda parts, rows: dict(rows)),
        Form("OPTIMIZE ZORDER BY", lambda parts, kind: "OPTIMIZE {t} ZORDER BY (id)", lambda parts, rows: dict(rows)),
    )
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A relation between the rows of two statements: the later statement and the winning one."""

    name: str
    ours: Parts
    theirs: Parts


OURS = Parts((0, 1), 7, (100, 101), 2)
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("disjoint", OURS, Parts((2, 3), 8, (110, 111), 1)),
        Variant("same", OURS, Parts((1, 2), 8, (101, 102), 1)),
        Variant("enter", OURS, Parts((2,), 0, (101, 120), 1)),
        Variant("swap", Parts((0,), 1, (100, 101), 2), Parts((1,), 0, (10, 101), 1)),
    )
}


def has_statement(kind: Kind, form: Form) -> bool:
    """Returns whether stock Delta supports the statement on such a table at all."""
    return not (kind.clause.startswith("CLUSTER") and form.name == "OPTIMIZE ZORDER BY")


# ------------------------------------------------------------------------------------------------------------ the copies


class Wrong(Exception):
    """A table differs from what it should be."""


@dataclass(frozen=True, slots=True)
class State:
    """A table and its rows."""

    path: Path
    rows: Rows


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a statement on a table, and the table afterwards."""

    outcome: Result
    state: State


class Lake:
    """Tables of each kind, and the results of statements on copies of them. Each result is computed once and reused.

    Args:
        spark: Executes the statements.
        publisher: Commits them to the tables.
        folder: The folder of the tables.
        is_thorough: Whether Delta also reads every table, not only this module by log and files. Slow.
    """

    def __init__(self, spark: SparkSession, publisher: Publisher, folder: Path, *, is_thorough: bool = False) -> None:
        self._spark, self._publisher, self._folder = spark, publisher, folder
        self._is_thorough = is_thorough
        self._first: dict[str, State] = {}
        self._staged: dict[tuple[str, str, Parts], Staged] = {}
        self._after: dict[tuple[str, tuple[tuple[str, Parts], ...]], State] = {}
        self._number = 0

    def first(self, kind: Kind) -> State:
        """Returns the table as it was made."""
        if kind.name not in self._first:
            path = self._new_path(kind.name)
            make(self._spark, kind, path)
            self._first[kind.name] = State(path, read(path))
        return self._first[kind.name]

    def after(self, kind: Kind, *earlier: tuple[Form, Parts]) -> State:
        """Returns a copy after these statements, one after the other; also compares each with its expected effect."""
        key = kind.name, tuple((form.name, parts) for form, parts in earlier)
        if not earlier:
            return self.first(kind)
        if key not in self._after:
            before = self.after(kind, *earlier[:-1])
            form, parts = earlier[-1]
            path = self.copy(kind, before.path)
            if self.run(form.text(parts, kind, path)).version is None and len(earlier) == 1:
                raise Wrong(f"the winning statement changed nothing: {form.name} {parts}")
            self._after[key] = State(path, self.compared(kind, path, before.rows, form, parts))
        return self._after[key]

    def staged(self, kind: Kind, form: Form, parts: Parts) -> Staged:
        """Returns the statement, computed on the first table."""
        key = kind.name, form.name, parts
        if key not in self._staged:
            self._staged[key] = self.stage(form.text(parts, kind, self.first(kind).path))
            if not isinstance(self._staged[key].commit, Captured):
                raise Wrong(f"the statement changed nothing: {form.name} {parts}")
        return self._staged[key]

    def follow(self, kind: Kind, form: Form, parts: Parts, *earlier: tuple[Form, Parts]) -> Ended:
        """Commits the statement, computed on the first table, after the winning commits; compares the result in every way.

        Raises:
            Wrong: The table, its log or its change feed is not what a serial run leaves.
        """
        won = self.after(kind, *earlier)
        staged = self.staged(kind, form, parts)
        path = self.copy(kind, self.first(kind).path, won.path)
        staged = replace(staged, dml=self.dml(form.text(parts, kind, path)))
        outcome = self.finish(staged)
        rows = self.compared(kind, path, won.rows, form, parts)
        version = outcome.version
        if version is not None and kind.has_feed:
            self._compare_feed(path, version, won.rows, rows)
        audit(path)
        # Delta caches two or three megabytes of a table for an hour, and there are thousands of tables.
        jvm = self._publisher.jvm
        jvm.forget(jvm.delta_log(str(path)).dataPath())
        return Ended(outcome, State(path, rows))

    def run(self, text: str) -> Result:
        """Executes a statement."""
        return self._publisher.publish(self.dml(text))

    def stage(self, text: str) -> Staged:
        """Executes a statement, and stages its commit."""
        return self._publisher.stage(self.dml(text))

    def finish(self, staged: Staged) -> Result:
        """Commits a staged statement after all commits that were made meanwhile."""
        return self._publisher.finish(staged)

    def dml(self, text: str) -> Dml:
        """Parses the text of a statement."""
        found = statement(self._spark, text)
        assert found is not None, "it changes a table"
        return found

    def copy(self, kind: Kind, *tables: Path) -> Path:
        """Makes a table with all files of these tables; files of the same name must be equal."""
        path = self._new_path(kind.name)
        for table in tables:
            shutil.copytree(table, path, dirs_exist_ok=True)
        return path

    def compared(self, kind: Kind, path: Path, before: Rows, form: Form, parts: Parts) -> Rows:
        """Returns the rows of a table, which must equal those of `before` after the statement."""
        now, expected = read(path), form.serial(parts, before)
        compare(now, expected)
        if kind.tracks_rows:
            compare_ids(now, expected, before)
        if self._is_thorough:
            seen = self._rows_by_spark(kind, path)
            if seen != now if kind.tracks_rows else Counter(seen.values()) != Counter(now.values()):
                raise Wrong(f"Delta reads other rows than the log and its files say: {seen} {now}")
        return now

    def _rows_by_spark(self, kind: Kind, path: Path) -> Rows:
        names = COLUMNS.split(", ")
        frame = self._spark.read.format("delta").load(str(path))
        also = ["_metadata.row_id"] if kind.tracks_rows else []
        rows = frame.select(*names, *also).collect()
        return {row.row_id if also else place: Row(*row[:5]) for place, row in enumerate(rows)}

    def _compare_feed(self, path: Path, version: int, before: Rows, now: Rows) -> None:
        reader = self._spark.read.format("delta").option("readChangeFeed", "true")
        feed = reader.option("startingVersion", version).option("endingVersion", version).load(str(path)).collect()
        said: Counter[Row] = Counter(before.values())
        for row in feed:
            is_new = row._change_type in ("insert", "update_postimage")
            said[Row(*(row[name] for name in COLUMNS.split(", ")))] += 1 if is_new else -1
        if {row: n for row, n in said.items() if n} != Counter(now.values()):
            raise Wrong(f"the change feed of version {version} is not what the version changed: {feed}")

    def _new_path(self, name: str) -> Path:
        self._number += 1
        return self._folder / f"{name}-{self._number}"


def compare(now: Rows, expected: Rows) -> None:
    """Checks that both have the same rows, each the same number of times.

    Raises:
        Wrong: They are not.
    """
    there, should = Counter(now.values()), Counter(expected.values())
    if there != should:
        raise Wrong(f"not there: {sorted_rows(should - there)}; there, but should not: {sorted_rows(there - should)}")


def compare_ids(now: Rows, expected: Rows, before: Rows) -> None:
    """Checks that rows keep their ids, and that new rows have ids of their own.

    Raises:
        Wrong: They do not.
    """
    kept = {id_: row for id_, row in expected.items() if id_ >= 0}
    if {id_: row for id_, row in now.items() if id_ in before} != kept:
        # This also finds a deleted row whose id is used again: it is not among the kept rows.
        raise Wrong(f"row ids moved: {sorted(set(now.items()) ^ set(kept.items()), key=str)}")


def sorted_rows(rows: Counter[Row]) -> list[Row]:
    """Sorts rows, for messages."""
    return sorted(rows.elements(), key=str)


# ------------------------------------------------------------------------------------------------- the log and its files


def read(path: Path) -> Rows:
    """Reads the rows of a table from its log and its files alone: without Spark and without Delta.

    Raises:
        Wrong: A row id is given twice, or a generated column is not what it says.
    """
    metadata = [action.body for _, actions in commits(path) for action in actions if action.kind == "metaData"][-1]
    fields = json.loads(metadata["schemaString"])["fields"]
    physical = {
        each["name"]: (each.get("metadata") or {}).get("delta.columnMapping.physicalName", each["name"])
        for each in fields
    }
    row_id = metadata["configuration"].get("delta.rowTracking.materializedRowIdColumnName")
    rows: Rows = {}
    for file in files(path):
        for place, values in _live_values(path, file):
            row = Row(*(_value(values, file, physical[name]) for name in COLUMNS.split(", ")))
            if "g" in physical and values[physical["g"]] != (None if row.v is None else row.v * 2):
                raise Wrong(f"a generated column is not what it says: {values}")
            id_ = len(rows)
            if row_id is not None:
                id_ = file["baseRowId"] + place if values.get(row_id) is None else values[row_id]
            if id_ in rows:
                raise Wrong(f"row ids are given twice: {row} {rows[id_]}")
            rows[id_] = row
    return rows


def files(path: Path) -> list[Body]:
    """Returns the files of a table: the `add` of each."""
    live: dict[str, Body] = {}
    for _, actions in commits(path):
        for action in actions:
            if action.kind == "remove":
                live.pop(action.body["path"], None)
        live.update({action.body["path"]: action.body for action in actions if action.kind == "add"})
    return list(live.values())


def _live_values(path: Path, file: Body) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields row index and values of the rows of a file that its vector does not mark."""
    vector = file.get("deletionVector")
    marked = BitMap64()
    if vector is not None:
        where = deletion_vectors.location(vector)
        marked = deletion_vectors.read(vector, None if where is None else (path / where).read_bytes())
    for place, values in enumerate(parquet.ParquetFile(path / unquote(file["path"])).read().to_pylist()):
        if place not in marked:
            yield place, values


def _value(values: Mapping[str, Any], file: Body, name: str) -> Any:
    """Returns the value of a column or of the partition, where values are only numbers."""
    return int(file["partitionValues"][name]) if name in file["partitionValues"] else values[name]


def commits(path: Path) -> Iterator[tuple[int, tuple[Action, ...]]]:
    """Yields the commits of a table, in order."""
    for file in sorted((path / "_delta_log").iterdir()):
        if re.fullmatch(r"\d{20}\.json", file.name):
            yield int(file.stem), parse(file.read_text())


def audit(path: Path) -> None:
    """Checks rules of Delta's protocol for a log whose violation readers do not notice.

    Raises:
        Wrong: A commit removes a file that is absent, or adds one that is present; a vector shrinks; files of a commit do not share
            `dataChange`; commits' timestamps do not grow; a scratch log is left.
    """
    live: dict[str, tuple[str | None, int]] = {}
    last_ms = 0
    for version, actions in commits(path):
        files = [action for action in actions if action.kind in ("add", "remove")]
        if len({action.body["dataChange"] for action in files}) > 1:
            raise Wrong(f"version {version}: some of its files change data, and some do not")
        before = dict(live)
        for action in files:
            body = action.body
            if action.kind == "remove" and live.pop(body["path"], (object(),))[0] != identity(
                body.get("deletionVector")
            ):
                raise Wrong(f"version {version} removes what is not there: {body}")
        for action in files:
            body = action.body
            if action.kind == "add":
                vector = body.get("deletionVector")
                size = 0 if vector is None else int(vector["cardinality"])
                if body["path"] in live:
                    raise Wrong(f"version {version} adds what is there: {body}")
                if body["path"] in before and size < before[body["path"]][1]:
                    raise Wrong(f"version {version}: a vector shrinks: {body}")
                records = json.loads(body.get("stats") or "{}").get("numRecords")
                if records is not None and size >= records > 0:
                    raise Wrong(f"version {version}: a file without rows stays: {body}")
                live[body["path"]] = identity(vector), size
        for action in actions:
            at_ms: Any = action.body.get("inCommitTimestamp") if action.kind == "commitInfo" else None
            if at_ms is not None:
                if at_ms <= last_ms:
                    raise Wrong(f"version {version} is not later than the one before")
                last_ms = at_ms
    if left := [str(found) for found in path.glob("lg*/_delta_log")]:
        raise Wrong(f"scratch logs are left: {left}")
