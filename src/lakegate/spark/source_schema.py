"""The columns of a source of files: as stated, merged from its Parquet files, and those of folders named `name=value`."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from lakegate.errors import Corrupt
from lakegate.spark.source_files import FileState, printable

READ_BY_PATH = {"__globPaths__": "false", "recursiveFileLookup": "true"}
"""Options with which Spark reads files by their exact paths, and takes no columns from their folders."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_WIDER = (("integer", "long"), ("float", "double"), ("integer", "double"))
"""Pairs of types that one column may have in two files: Spark reads both as the second type."""
REPLACE = (
    "Write the file again, or move it out of the source; to go on without it, put an empty file there instead. "
    "Write files under a hidden name (_NAME), and rename them when they are whole"
)


class Footers:
    """The metadata of Parquet files on this machine's disk; each footer is read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[FileState, int, str]] = {}
        self._schemas: dict[str, StructType] = {}
        self._names: dict[str, tuple[str, ...]] = {}

    def read(self, files: Mapping[str, FileState], older: Mapping[str, FileState]) -> None:
        """Reads the footers that are not known yet, and forgets all others.

        Args:
            files: Path → state, of files that will be read.
            older: The same for files that were read already; their present content does not matter, so a damaged one is left out.

        Raises:
            Corrupt: one of `files` is not a Parquet file.
        """
        known: dict[str, tuple[FileState, int, str]] = {}
        for path, state in [*files.items(), *older.items()]:
            found = self._known.get(path)
            try:
                known[path] = found if found is not None and found[0] == state else self._look(path, state)
            except Corrupt:
                if path in files:
                    raise
        self._known = known

    def _look(self, path: str, state: FileState) -> tuple[FileState, int, str]:
        if state.size_bytes == 0:  # Spark reads it as a file without rows
            return state, 0, ""
        try:
            footer = parquet.read_metadata(path)
        except FileNotFoundError:
            return state, 0, ""
        except (OSError, ValueError) as error:
            raise Corrupt(
                "a file of the source is no whole Parquet file; nothing was read and nothing was written",
                advice=REPLACE,
                file=printable(path),
            ) from error
        text = str(footer.schema).partition("\n")[2]  # the first line is an address in memory
        return state, footer.num_rows, hashlib.sha256(text.encode()).hexdigest()

    def most_rows(self) -> int:
        """Returns the number of rows of the largest file."""
        return max((rows for _, rows, _ in self._known.values()), default=0)

    def one_of_each(self) -> dict[str, str]:
        """Returns kind of schema → one file that has it."""
        return {kind: path for path, (_, _, kind) in self._known.items() if kind}

    def columns(self) -> dict[str, str]:
        """Returns every column and field by its dotted name → a file that has it."""
        found: dict[str, str] = {}
        for kind, path in self.one_of_each().items():
            if kind not in self._names:
                self._names[kind] = tuple(_names(parquet.read_schema(path)))
            for name in self._names[kind]:
                found.setdefault(name, path)
        return found

    def merged(self, spark: SparkSession, waiting: Collection[str] = ()) -> StructType:
        """Returns the columns of all files, each with a type that can read them all.

        Args:
            spark: Reads one file of each kind of schema.
            waiting: Paths of files that will be read. The other files only add columns, unless none is waiting.

        Raises:
            Corrupt: two files cannot be read with one schema, or Spark cannot read a column's type.
        """
        first_of: dict[str, str] = {}
        for path in waiting:
            if (known := self._known.get(path)) is not None and known[2]:
                first_of.setdefault(known[2], path)
        merged: StructType | None = None
        for kind, path in first_of.items():
            schema = self._schema(spark, kind, path)
            merged = schema if merged is None else _both(merged, schema, path, next(iter(first_of.values())))
        for kind, path in self.one_of_each().items():
            if kind in first_of:
                continue
            try:
                schema = self._schema(spark, kind, path)
            except Corrupt:  # it had another schema when it was read
                continue
            if merged is None:
                merged = schema
            elif not first_of:
                merged = _added(merged, schema)
            else:
                for new_kind, new_path in first_of.items():
                    _both(schema, self._schema(spark, new_kind, new_path), new_path, path)
                merged = _both(merged, schema, path, next(iter(first_of.values())))
        return StructType([]) if merged is None else merged

    def _schema(self, spark: SparkSession, kind: str, path: str) -> StructType:
        if kind not in self._schemas:
            try:
                self._schemas[kind] = spark.read.format("parquet").options(**READ_BY_PATH).load(path).schema
            except PySparkException as error:
                raise unreadable_columns(path, error) from error
        return self._schemas[kind]


def unreadable_columns(path: str, error: PySparkException) -> Corrupt:
    """Returns an error for columns of a Parquet file that Spark cannot read; it names them where they can be found."""
    try:
        columns = [
            name
            for name, kind in _typed(parquet.read_schema(path))
            if pa.types.is_temporal(kind) and "[ns" in str(kind)
        ]
    except (OSError, ValueError):
        columns = []
    if columns and "PARQUET_TYPE_ILLEGAL" in str(error.getCondition() or error):
        return Corrupt(
            "a file of the source has timestamps in nanoseconds, which Spark does not read; nothing was read",
            advice="Write them in microseconds (pandas: to_parquet(…, coerce_timestamps='us'; pyarrow: "
            "write_table(…, coerce_timestamps='us'))",
            file=printable(path),
            column=", ".join(columns),
        )
    said = str(error).strip().splitlines()
    return Corrupt(
        f"a file of the source cannot be read by Spark: {said[0] if said else 'no reason given'}; nothing was read",
        advice=REPLACE,
        file=printable(path),
    )


def _names(schema: pa.Schema) -> Iterable[str]:
    return (name for name, _ in _typed(schema))


def _typed(schema: pa.Schema) -> Iterable[tuple[str, pa.DataType]]:
    todo = [(field.name, field.type) for field in reversed(list(schema))]
    while todo:
        name, kind = todo.pop()
        yield name, kind
        if pa.types.is_struct(kind):
            todo += [(f"{name}.{kind.field(i).name}", kind.field(i).type) for i in reversed(range(kind.num_fields))]
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            element = kind.value_type
            if pa.types.is_struct(element):
                todo += [(f"{name}.{element.field(i).name}", element.field(i).type) for i in range(element.num_fields)]


def left_out(columns: Mapping[str, str], stated: StructType) -> dict[str, str]:
    """Returns columns and fields of files that a stated schema lacks → a file that has them; the outermost name only."""
    found: dict[str, str] = {}
    for name, path in columns.items():
        at: DataType = stated
        parts = name.split(".")
        for depth, part in enumerate(parts, 1):
            while isinstance(at, ArrayType):
                at = at.elementType
            if not isinstance(at, StructType):
                break
            field = next((one for one in at.fields if one.name.lower() == part.lower()), None)
            if field is None:
                found.setdefault(".".join(parts[:depth]), path)
                break
            at = field.dataType
    return found


# ------------------------------------------------------------------------------------------------------------ merging


class _Different(Exception):
    """Two types that no common type can read."""

    def __init__(self, name: str, one: DataType, other: DataType) -> None:
        super().__init__(name)
        self.name, self.one, self.other = name, one, other


def _both(one: StructType, other: StructType, path: str, first: str) -> StructType:
    """Returns the columns of both schemas, each with a type that reads both."""
    try:
        merged = _merged("", one, other)
    except _Different as different:
        raise Corrupt(
            "the files of the source have two types in one column, and cannot be read together; nothing was read",
            advice="Write the file again with the other's type; or, if the new type is meant, move the older files out of the "
            "source",
            column=different.name,
            file=printable(path),
            type=different.other.simpleString(),
            before=different.one.simpleString(),
            other_file=printable(first),
        ) from None
    assert isinstance(merged, StructType)
    return merged


def _merged(name: str, one: DataType, other: DataType) -> DataType:
    if one == other:
        return one
    if isinstance(one, StructType) and isinstance(other, StructType):
        fields = {field.name.lower(): field for field in one.fields}
        for field in other.fields:
            known = fields.get(field.name.lower())
            at = f"{name}.{field.name}" if name else field.name
            fields[field.name.lower()] = (
                StructField(field.name, field.dataType)
                if known is None
                else StructField(known.name, _merged(at, known.dataType, field.dataType))
            )
        return StructType(list(fields.values()))
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merged(name, one.elementType, other.elementType))
    if isinstance(one, MapType) and isinstance(other, MapType):
        return MapType(_merged(name, one.keyType, other.keyType), _merged(name, one.valueType, other.valueType))
    if (one.typeName(), other.typeName()) in _WIDER:
        return other
    if (other.typeName(), one.typeName()) in _WIDER:
        return one
    raise _Different(name, one, other)


def _added(merged: StructType, older: StructType) -> StructType:
    """Returns the columns of `merged`, and those that only `older` has."""
    known = {name.lower() for name in merged.names}
    return StructType([*merged.fields, *(field for field in older.fields if field.name.lower() not in known)])


# ------------------------------------------------------------------------------------------------- names of folders


def folder_values(path: str, base: str) -> dict[str, str]:
    """Returns the values of a file's folders `name=value` below the source's own folder; of equal names the innermost counts."""
    inner = path[len(base) :] if path.startswith(base) else path
    found = {}
    for part in inner.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name:
            found[unquote(name)] = unquote(value)
    return found


def folder_columns(paths: Iterable[str], base: str) -> dict[str, DataType]:
    """Returns the column names of the files' folders → a type that fits all their values."""
    values: dict[str, set[str]] = {}
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        if folder in folders or "=" not in folder:
            continue
        folders.add(folder)
        for name, value in folder_values(path, base).items():
            values.setdefault(name, set()).add(value)
    return {name: _type_of([value for value in found if value != NO_VALUE]) for name, found in values.items()}


def _type_of(values: Sequence[str]) -> DataType:
    if values and all(re.fullmatch(r"-?(0|[1-9]\d{0,17})|0\d{1,8}", value) for value in values):
        return IntegerType() if all(abs(int(value)) < 1 << 31 for value in values) else LongType()
    if values and all(_is_date(value) for value in values):
        return DateType()
    return StringType()


def _is_date(value: str) -> bool:
    try:
        return re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None and bool(datetime.date.fromisoformat(value))
    except ValueError:
        return False
