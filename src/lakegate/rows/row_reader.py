"""Reads rows and files of a table for the rebase of a statement that lost its optimistic commit.

Spark reads the rows in the statement's own session, because its settings decide what a condition means. Files that
statistics rule out are not read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.sql.window import Window

from lakegate.delta import deletion_vectors
from lakegate.delta.actions import PHYSICAL_NAME, Body, FileChange, as_add, partition_columns, vector_of
from lakegate.delta.jvm import JVM_ERRORS, Jvm, first_line
from lakegate.errors import Corrupt, Unavailable
from lakegate.quoting import quoted
from lakegate.rows import parquet_probe, quick
from lakegate.rows.conflict import data_skipping
from lakegate.rows.conflict.effects import Positions
from lakegate.rows.small_file_cache import Remembered, TableFiles, plain
from lakegate.rows.statement import Dml

BUDGET_CONF, BUDGET_BYTES = "spark.lakegate.testBytesMax", 2**30
"""Session setting: files up to this total size are read to find rows that concern a statement."""
COLLATIONS = "__COLLATIONS"
"""In a column's metadata: values are not compared byte by byte. An expression's type does not show this."""
POSITIONS_MAX = 100_000
"""Up to this many row positions are collected in the driver."""
LISTED_MAX = 1_000
"""Up to this many positions are listed in a query; more are joined."""
FILE, ROW = "__lakegate_file", "__lakegate_row"
METADATA = "_metadata"
COMPARED_TYPES = (
    *(BinaryType, BooleanType, DateType, DecimalType, DoubleType, FloatType, IntegralType),
    *(TimestampNTZType, TimestampType),
)

_State = tuple[str, str | None, str | None]
"""A file, and the ids of its vectors before and after."""


class TableRows:
    """The rows of one table, for one statement.

    Args:
        jvm: Of the statement's session.
        log: Delta's log of the table.
        dml: The statement.
        remembered: The driver's cache of small files.
    """

    def __init__(self, jvm: Jvm, log: Any, dml: Dml, remembered: Remembered) -> None:
        self._jvm, self._log, self._dml = jvm, log, dml
        self._files = TableFiles(jvm, log.dataPath(), remembered)
        schema = json.loads(log.unsafeVolatileSnapshot().metadata().schemaString() or '{"fields": []}')
        self._columns = {
            field["name"]: (field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"])
            for field in schema["fields"]
            if COLLATIONS not in (field.get("metadata") or {})
        }
        """Column name → name in the log, without columns whose bounds are in another order than a condition's comparison."""
        is_place_hidden = any(field["name"].lower() == METADATA for field in schema["fields"])
        # A column of that name hides Spark's row positions.
        self._budget = -1 if is_place_hidden else jvm.int_conf(BUDGET_CONF, BUDGET_BYTES)
        self.rows_read = 0
        """Rows that were read again, including marked ones, as far as the log has their number."""
        self._entered: dict[_State, tuple[bool, Positions]] = {}
        """Whether the condition matches rows of a file, and which: later commits do not change this."""
        self._unmet: set[_State] = set()
        """Changes without a row that matches a source row."""
        self._vectors: dict[str, BitMap64] = {}

    # ------------------------------------------------------------------------------------------------------- questions

    def entered(self, files: Sequence[FileChange]) -> Mapping[str, Positions]:
        """Returns the rows of files that match the statement's condition."""
        adds = {_state(change): change.after for change in files if change.after is not None}
        new = {state: add for state, add in adds.items() if state not in self._entered}
        found = self._found_in(list(new.values()))
        for state, add in new.items():
            self._entered[state] = add["path"] in found, found.get(add["path"])
        return {add["path"]: self._entered[state][1] for state, add in adds.items() if self._entered[state][0]}

    def _found_in(self, files: Sequence[Body]) -> Mapping[str, Positions]:
        condition = self._dml.described_condition
        open_ = self._not_ruled_out(condition, files)
        if not open_:
            return {}
        if not self._is_within_budget(open_):
            return {file["path"]: None for file in open_}
        if (quickly := self._found_quickly(open_)) is not None:
            return quickly
        # The condition may name the table's rows by their alias, and our columns must not be between them.
        concerned = self._dml.concerned(self.frame(open_))
        found: list[Any] | None = None
        if _has_positions(concerned):
            found = concerned.select("_metadata.file_path", "_metadata.row_index").limit(POSITIONS_MAX + 1).collect()
        if found is None or len(found) > POSITIONS_MAX:
            names = [row[0] for row in concerned.select("_metadata.file_path").distinct().collect()]
            return {self._path(name, open_): None for name in names}
        entered: dict[str, BitMap64] = {}
        for name, row in found:
            entered.setdefault(self._path(name, open_), BitMap64()).add(row)
        return entered

    def _found_quickly(self, files: Sequence[Body]) -> Mapping[str, BitMap64] | None:
        """Returns the rows of files that match the condition: path → positions; None if a Spark job has to find them."""
        if not files:
            return {}
        if quick.why_not(self._dml) is not None or (found := quick.find(self._dml, self._adds(files))) is None:
            return None
        self._count([file for file in files if file["path"] in found])
        return {path: rows for path, rows in found.items() if rows}

    def meet_keys(self, came: Sequence[FileChange], gone: Sequence[FileChange]) -> bool:
        """Returns True if an added or removed row matches a source row."""
        came = [change for change in came if _state(change) not in self._unmet]
        gone = [change for change in gone if _state(change) not in self._unmet]
        is_met = self._is_met(came, gone)
        if not is_met:
            self._unmet |= {_state(change) for change in (*came, *gone)}
        return is_met

    def _is_met(self, came: Sequence[FileChange], gone: Sequence[FileChange]) -> bool:
        if (answer := self._is_met_quickly(came, gone)) is not None:
            return answer
        keys = self._dml.described_keys
        new = self._not_ruled_out(keys, [file.after for file in came if file.after is not None])
        old = [change for change in gone if self._may_have_lost(keys, change)]
        if any("partitionValues" not in (change.before or {}) for change in old):
            return True  # an old form of `remove` lacks the values that are needed to read the file again
        if not self._is_within_budget([*new, *(change.before for change in old if change.before is not None)]):
            return True
        frames = [self.frame(new)] if new else []
        frames += [self._lost(change) for change in old]
        return any(not self._dml.met(frame).isEmpty() for frame in frames)

    def _is_met_quickly(self, came: Sequence[FileChange], gone: Sequence[FileChange]) -> bool | None:
        """Answers `meet_keys`; None if a Spark job has to."""
        new = [file.after for file in came if file.after is not None]
        old = {file.path: file.before for file in gone if file.before is not None}
        if any("partitionValues" not in file for file in old.values()) or not self._is_within_budget(
            [*new, *old.values()]
        ):
            return None
        found, before = self._found_quickly(new), self._found_quickly(list(old.values()))
        if found is None or before is None:
            return None
        if found:
            return True
        after = {file.path: file.after for file in gone}
        return any(
            (left := after[path]) is None or rows & (self._marked(left) - self._marked(old[path]))
            for path, rows in before.items()
        )

    def moved(self, gone: Sequence[FileChange], copies: Sequence[Body]) -> Mapping[str, BitMap64] | None:
        """Finds the rows that files have lost in copies of them; equal rows are interchangeable.

        None if columns cannot be compared reliably, or if the copies lack some of the rows.
        """
        if not self._is_within_budget([*copies, *(change.before for change in gone if change.before is not None)]):
            return None
        schema = self.frame(copies[:1]).schema
        if not all(_is_compared(field.dataType) for field in schema.fields):
            return None
        if any("partitionValues" not in (change.before or {}) for change in gone):
            return None
        names = [f"c{place}" for place in range(len(schema.fields))]
        lost = reduce(DataFrame.unionAll, [self._lost(change) for change in gone])
        lost = lost.select(*_exact(schema, names))
        copied = self.frame(copies)
        copied = copied.select(
            *_exact(schema, names),
            F.col("_metadata.file_path").alias(FILE),
            F.col("_metadata.row_index").alias(ROW),
        )
        number = F.row_number()
        left = lost.withColumn("n", number.over(Window.partitionBy(*names).orderBy(F.lit(0)))).alias("l")
        right = copied.withColumn("n", number.over(Window.partitionBy(*names).orderBy(FILE, ROW))).alias("r")
        same = reduce(Column.__and__, [F.col(f"l.{name}").eqNullSafe(F.col(f"r.{name}")) for name in [*names, "n"]])
        found = left.join(right, same, "left").select(FILE, ROW).limit(POSITIONS_MAX + 1).collect()
        if len(found) > POSITIONS_MAX or any(row[0] is None for row in found):
            return None
        places: dict[str, BitMap64] = {}
        for name, row in found:
            places.setdefault(self._path(name, copies), BitMap64()).add(row)
        return places

    def read_vector(self, descriptor: deletion_vectors.Descriptor) -> BitMap64:
        """Returns the positions that a vector marks.

        Raises:
            Corrupt: The vector's file is missing or damaged.
            Unavailable: The vector's file cannot be read.
        """
        where = deletion_vectors.location(descriptor)
        if where is None:
            return deletion_vectors.read(descriptor)
        name = deletion_vectors.identity(descriptor) or ""
        if name not in self._vectors:
            self._vectors[name] = self._read_vector(descriptor, where)
        return self._vectors[name]

    def _read_vector(self, descriptor: deletion_vectors.Descriptor, where: str) -> BitMap64:
        is_below = descriptor["storageType"] == "u"
        try:
            content = self._files.read(where, is_below=is_below)
        except JVM_ERRORS as error:
            raise Unavailable(
                "the file of a deletion vector cannot be read; nothing was written", reason=first_line(error)
            ) from error
        if content is None:
            raise Corrupt(
                "the file of a deletion vector is gone; nothing was written",
                file=self._files.uri(where, is_below=is_below),
            )
        return deletion_vectors.read(descriptor, content)

    def write_vectors(self, positions: Sequence[BitMap64]) -> tuple[deletion_vectors.Descriptor, ...]:
        """Writes vectors to a file next to the table's data; returns their descriptors."""
        if not positions:
            return ()
        content, descriptors = deletion_vectors.write(positions, uuid.uuid4().bytes)
        self._files.write(deletion_vectors.location(descriptors[0]) or "", content)
        return tuple(descriptors)

    # ---------------------------------------------------------------------------------------------------------- files

    def _is_within_budget(self, files: Collection[Body]) -> bool:
        """Returns True if files are small enough to be read; otherwise the statement is executed again instead."""
        return sum(int(file.get("size") or 0) for file in files) <= self._budget

    def _not_ruled_out(self, condition: data_skipping.Condition, files: Iterable[Body]) -> list[Body]:
        return [file for file in files if self._may_have(condition, file)]

    def _may_have(self, condition: data_skipping.Condition, file: Body, rows: BitMap64 | None = None) -> bool:
        return data_skipping.may_hold(condition, file, self._columns) and parquet_probe.may_have(
            self._files, condition, file, self._columns, rows
        )

    def _may_have_lost(self, condition: data_skipping.Condition, change: FileChange) -> bool:
        before = change.before
        if before is None:
            return False
        rows = None if change.after is None else self._marked(change.after) - self._marked(before)
        return self._may_have(condition, before, rows)

    def frame(self, files: Collection[Body]) -> DataFrame:
        """Returns the live rows of files."""
        self._count(files)
        with self._jvm.active():
            adds = self._jvm.to_seq(self._jvm.action({"add": add}) for add in self._adds(files))
            snapshot = self._log.unsafeVolatileSnapshot()
            return self._jvm.frame(self._log.createDataFrame(snapshot, adds, False, self._jvm.none))

    def _count(self, files: Collection[Body]) -> None:
        """Counts the rows of files as read."""
        self.rows_read += sum(int(json.loads(file.get("stats") or "{}").get("numRecords", 0)) for file in files)

    def _adds(self, files: Collection[Body]) -> list[Body]:
        """Returns the `add` of each file."""
        columns = partition_columns(json.loads(self._log.unsafeVolatileSnapshot().metadata().json())["metaData"])
        return [as_add(file, columns) for file in files]

    def _lost(self, change: FileChange) -> DataFrame:
        """Returns the rows that were live in a file before, and are not live now."""
        before = change.before
        assert before is not None, "only an earlier file can lose rows"
        if change.after is None:
            return self.frame([before])
        positions = self._marked(change.after) - self._marked(before)
        frame = self.frame([{key: value for key, value in before.items() if key != "deletionVector"}])
        if len(positions) <= LISTED_MAX:
            return frame.where(F.col("_metadata.row_index").isin(list(positions)))
        listed = self._dml.session.createDataFrame([(position,) for position in positions], f"{ROW} long")
        named = frame.withColumn(ROW, F.col("_metadata.row_index"))
        return named.join(F.broadcast(listed), ROW, "left_semi").drop(ROW)

    def _marked(self, file: Body) -> BitMap64:
        descriptor = file.get("deletionVector")
        return BitMap64() if descriptor is None else self.read_vector(descriptor)

    def _path(self, name: str, files: Collection[Body]) -> str:
        """Returns the path in the log of a file that Spark names."""
        uri = plain(name)
        for path in (uri.removeprefix(self._files.prefix), uri, name):
            if any(file["path"] == path for file in files):
                return path
        raise Corrupt("rows were read from a file that was not asked for; nothing was written", file=name)


def _state(change: FileChange) -> _State:
    before, after = (None if file is None else vector_of(file) or "" for file in (change.before, change.after))
    return change.path, before, after


def _has_positions(frame: DataFrame) -> bool:
    """Returns True if Delta reports positions of rows: only for tables that may have vectors or row ids."""
    metadata = frame.select("_metadata").schema["_metadata"].dataType
    return isinstance(metadata, StructType) and "row_index" in metadata.names


def _is_compared(kind: DataType) -> bool:
    """Returns True if equality of values of this type certainly means that they are the same."""
    if isinstance(kind, StringType):
        return kind.simpleString() == "string"
    if isinstance(kind, ArrayType):
        return _is_compared(kind.elementType) and not _has_floats(kind)
    if isinstance(kind, StructType):
        return all(_is_compared(field.dataType) for field in kind.fields) and not _has_floats(kind)
    return isinstance(kind, COMPARED_TYPES)


def _has_floats(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_floats(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind.fields)
    return isinstance(kind, DoubleType | FloatType)


def _exact(schema: StructType, names: Sequence[str]) -> list[Column]:
    """Returns columns that are equal only if the values are the same: 0.0 and -0.0 differ."""
    columns = []
    for field, name in zip(schema.fields, names, strict=True):
        column = F.col(quoted(field.name))
        if isinstance(field.dataType, DoubleType | FloatType):
            column = column.cast("string")
        columns.append(column.alias(name))
    return columns
