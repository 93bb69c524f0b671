"""What a statement that lost a race asks of a table's rows and files.

Rows are read by Spark, in the statement's own session: its settings decide what a condition means. Files that statistics
rule out are not read.
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
from lakegate.rows import parquet_probe
from lakegate.rows.conflict import data_skipping
from lakegate.rows.conflict.effects import Positions
from lakegate.rows.small_file_cache import Remembered, TableFiles, plain
from lakegate.rows.statement import Dml

BUDGET_CONF, BUDGET_BYTES = "spark.lakegate.testBytesMax", 2**30
"""Of the session: files of so many bytes in all are looked into for rows that concern a statement."""
COLLATIONS = "__COLLATIONS"
"""In a column's metadata: it is compared in another way than byte by byte. An expression's type does not say so."""
POSITIONS_MAX = 100_000
"""Of so many rows the positions are collected in the driver."""
LISTED_MAX = 1_000
"""Up to so many positions stand in a query; more are joined."""
FILE, ROW = "__lakegate_file", "__lakegate_row"
METADATA = "_metadata"
COMPARED_TYPES = (
    *(BinaryType, BooleanType, DateType, DecimalType, DoubleType, FloatType, IntegralType),
    *(TimestampNTZType, TimestampType),
)

_State = tuple[str, str | None, str | None]
"""A file, and its vectors before and after."""


class TableRows:
    """The rows of one table, for one statement.

    Args:
        jvm: Of the statement's session.
        log: Delta's log of the table.
        dml: The statement.
        remembered: Small files that the driver has read.
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
        """Name of each column → its name in the log, but for those whose bounds are not in the order that a condition means."""
        is_place_hidden = any(field["name"].lower() == METADATA for field in schema["fields"])
        # A column of that name hides where Spark has read a row.
        self._budget = -1 if is_place_hidden else jvm.int_conf(BUDGET_CONF, BUDGET_BYTES)
        self.rows_read = 0
        """Rows that were read again, marked ones included, as far as the log says."""
        self._entered: dict[_State, tuple[bool, Positions]] = {}
        """Whether the condition holds for rows of a file, and for which: it does not change as others commit."""
        self._unmet: set[_State] = set()
        """Changes with no row that belongs to one of the source."""
        self._vectors: dict[str, BitMap64] = {}

    # ------------------------------------------------------------------------------------------------------- questions

    def entered(self, files: Sequence[FileChange]) -> Mapping[str, Positions]:
        """Which rows of files its condition holds for."""
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
        # The condition may name the table's rows by their alias, and no column of ours may come between.
        concerned = self._dml.concerned(self._frame(open_))
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

    def meet_keys(self, came: Sequence[FileChange], gone: Sequence[FileChange]) -> bool:
        """Whether a row that came, or went, belongs to a row of its source."""
        came = [change for change in came if _state(change) not in self._unmet]
        gone = [change for change in gone if _state(change) not in self._unmet]
        is_met = self._is_met(came, gone)
        if not is_met:
            self._unmet |= {_state(change) for change in (*came, *gone)}
        return is_met

    def _is_met(self, came: Sequence[FileChange], gone: Sequence[FileChange]) -> bool:
        keys = self._dml.described_keys
        new = self._not_ruled_out(keys, [file.after for file in came if file.after is not None])
        old = [change for change in gone if self._may_have_lost(keys, change)]
        if any("partitionValues" not in (change.before or {}) for change in old):
            return True  # an old form of removal does not say enough to read the file again
        if not self._is_within_budget([*new, *(change.before for change in old if change.before is not None)]):
            return True
        frames = [self._frame(new)] if new else []
        frames += [self._lost(change) for change in old]
        return any(not self._dml.met(frame).isEmpty() for frame in frames)

    def moved(self, gone: Sequence[FileChange], copies: Sequence[Body]) -> Mapping[str, BitMap64] | None:
        """Where rows that files have lost are in copies of them; equal rows are one another's.

        None where columns cannot be compared for certain, or the copies have not got all of them.
        """
        if not self._is_within_budget([*copies, *(change.before for change in gone if change.before is not None)]):
            return None
        schema = self._frame(copies[:1]).schema
        if not all(_is_compared(field.dataType) for field in schema.fields):
            return None
        if any("partitionValues" not in (change.before or {}) for change in gone):
            return None
        names = [f"c{place}" for place in range(len(schema.fields))]
        lost = reduce(DataFrame.unionAll, [self._lost(change) for change in gone])
        lost = lost.select(*_exact(schema, names))
        copied = self._frame(copies)
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
        """The positions that a vector marks.

        Raises:
            Corrupt: Its file is gone, or damaged.
            Unavailable: Its file cannot be read.
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
        """Vectors in a file beside the table's data."""
        if not positions:
            return ()
        content, descriptors = deletion_vectors.write(positions, uuid.uuid4().bytes)
        self._files.write(deletion_vectors.location(descriptors[0]) or "", content)
        return tuple(descriptors)

    # ---------------------------------------------------------------------------------------------------------- files

    def _is_within_budget(self, files: Collection[Body]) -> bool:
        """Whether files are small enough to be looked into; else the statement is rather executed again."""
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

    def _frame(self, files: Collection[Body]) -> DataFrame:
        """The live rows of files."""
        for file in files:
            self.rows_read += int(json.loads(file.get("stats") or "{}").get("numRecords", 0))
        with self._jvm.active():
            snapshot = self._log.unsafeVolatileSnapshot()
            columns = partition_columns(json.loads(snapshot.metadata().json())["metaData"])
            adds = self._jvm.to_seq(self._jvm.action({"add": as_add(file, columns)}) for file in files)
            return self._jvm.frame(self._log.createDataFrame(snapshot, adds, False, self._jvm.none))

    def _lost(self, change: FileChange) -> DataFrame:
        """The rows that were live in a file before, and are not now."""
        before = change.before
        assert before is not None, "only a file of before can lose rows"
        if change.after is None:
            return self._frame([before])
        positions = self._marked(change.after) - self._marked(before)
        frame = self._frame([{key: value for key, value in before.items() if key != "deletionVector"}])
        if len(positions) <= LISTED_MAX:
            return frame.where(F.col("_metadata.row_index").isin(list(positions)))
        listed = self._dml.session.createDataFrame([(position,) for position in positions], f"{ROW} long")
        named = frame.withColumn(ROW, F.col("_metadata.row_index"))
        return named.join(F.broadcast(listed), ROW, "left_semi").drop(ROW)

    def _marked(self, file: Body) -> BitMap64:
        descriptor = file.get("deletionVector")
        return BitMap64() if descriptor is None else self.read_vector(descriptor)

    def _path(self, name: str, files: Collection[Body]) -> str:
        """The path in the log of a file that Spark names."""
        uri = plain(name)
        for path in (uri.removeprefix(self._files.prefix), uri, name):
            if any(file["path"] == path for file in files):
                return path
        raise Corrupt("rows were read from a file that was not asked for; nothing was written", file=name)


def _state(change: FileChange) -> _State:
    before, after = (None if file is None else vector_of(file) or "" for file in (change.before, change.after))
    return change.path, before, after


def _has_positions(frame: DataFrame) -> bool:
    """Whether Delta tells rows' places: only of tables that can have vectors or row ids."""
    metadata = frame.select("_metadata").schema["_metadata"].dataType
    return isinstance(metadata, StructType) and "row_index" in metadata.names


def _is_compared(kind: DataType) -> bool:
    """Whether equality of such values is certain to mean that they are the same."""
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
    """Columns that are equal only where the values are the same: 0.0 and -0.0 are not."""
    columns = []
    for field, name in zip(schema.fields, names, strict=True):
        column = F.col(quoted(field.name))
        if isinstance(field.dataType, DoubleType | FloatType):
            column = column.cast("string")
        columns.append(column.alias(name))
    return columns
