"""The columns of a table whose rows are written by key: checks the rows that are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    VariantType,
    _make_type_verifier,
)

from lakegate.delta.jvm import Jvm
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.rows.keyed_changes import Change

NO_KEYS = (FloatType, DoubleType, ArrayType, MapType, StructType, VariantType)
"""Types without an equality that Python and SQL share, or without one in SQL."""
FIXED_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
VALUE_BYTES = 16
"""Estimated size of a number or a time."""
Check = Callable[[Any], int]
"""Raises an error if a value is not one of a column; otherwise returns its estimated size in bytes."""


class KeyedColumns:
    """The columns of a table, as they were when the writer was opened, and those that are the key.

    Args:
        session: Any session.
        table: The table's location.
        key: Names of columns.

    Raises:
        InvalidRequest: A column is not in the table, or cannot be a key.
    """

    def __init__(self, session: SparkSession, table: TableLocation, key: Sequence[str]) -> None:
        jvm = Jvm(session)
        metadata = jvm.snapshot(jvm.delta_log(table)).metadata()
        self.fields = {field.name: field for field in StructType.fromJson(json.loads(metadata.schema().json())).fields}
        self.table, self.key = table, tuple(key)
        if not key or len(set(key)) < len(key):
            raise InvalidRequest("a key is one or more different columns; nothing was done", table=table, key=list(key))
        for name in key:
            if (why := self._why_no_key(name)) is not None:
                raise InvalidRequest(f"the column cannot be a key: {why}; nothing was done", table=table, column=name)
        self._partitions = frozenset(jvm.from_seq(metadata.partitionColumns()))
        self._checks = {name: _check_of(field.dataType) for name, field in self.fields.items()}

    def _why_no_key(self, name: str) -> str | None:
        field = self.fields.get(name)
        if field is None:
            return f"the table has {', '.join(self.fields)}"
        if isinstance(field.dataType, NO_KEYS):
            return f"values of type {field.dataType.simpleString()} are not compared with ="
        if field.dataType.simpleString().startswith("string collate"):
            return "different texts may be equal in its collation"
        if str(field.metadata.get(FIXED_LENGTH, "")).startswith("char"):
            return "its values are padded"
        return None

    def upsert(self, row: Mapping[str, object]) -> Change:
        """Returns the change that sets the columns given.

        Raises:
            InvalidRequest: A column is unknown, a value is not of its column's type, or a part of the key is missing or None.
        """
        return self._change(row, is_delete=False)

    def delete(self, key: object) -> Change:
        """Returns the change that deletes a row. `key`: column → value; or the value, or a tuple of the values.

        Raises:
            InvalidRequest: A part of the key is missing, None, or not of its column's type.
        """
        if isinstance(key, Mapping):
            if surplus := key.keys() - set(self.key):
                raise self._refused("a delete takes the columns of the key alone", column=min(map(str, surplus)))
            return self._change(key, is_delete=True)
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self.key):
            raise self._refused(f"the key has {len(self.key)} columns: {', '.join(self.key)}")
        return self._change(dict(zip(self.key, values, strict=True)), is_delete=True)

    def _change(self, row: Mapping[str, object], *, is_delete: bool) -> Change:
        size_bytes, values = 0, dict(row)
        for name, value in row.items():
            check = self._checks.get(name)
            if check is None:
                raise self._refused("the table has no such column", column=name)
            try:
                if type(value) is int and isinstance(self.fields[name].dataType, FloatType | DoubleType):
                    values[name] = value = float(value)  # JSON has one kind of number
                size_bytes += VALUE_BYTES if value is None else check(value)
            except (TypeError, ValueError, ArithmeticError, AssertionError) as error:
                kind = self.fields[name].dataType.simpleString()
                raise self._refused(f"a value is not a {kind}", column=name, found=type(value).__name__) from error
        return Change(
            key=tuple(self._part(row, name) for name in self.key),
            values=values,
            is_delete=is_delete,
            size_bytes=size_bytes,
        )

    def _part(self, row: Mapping[str, object], name: str) -> Hashable:
        value = row.get(name)
        if value is None:
            raise self._refused("a part of the key is missing", column=name)
        if value == "" and name in self._partitions:
            raise self._refused("an empty text is NULL in a partition column, and no key", column=name)
        if isinstance(value, bytearray):
            return bytes(value)
        kind = self.fields[name].dataType
        made: Hashable = kind.toInternal(value) if kind.needConversion() else value
        return made

    def _refused(self, why: str, *, column: str | None = None, found: str | None = None) -> InvalidRequest:
        return InvalidRequest(f"{why}; the row was not taken", table=self.table, column=column, found=found)


def _check_of(kind: DataType) -> Check:
    """Returns the check of a column: PySpark's, and what it lets pass although the JVM makes NULL or another value of it."""
    verify = _make_type_verifier(kind, nullable=False)

    def check(value: Any) -> int:
        verify(value)
        if kind.needConversion():
            kind.toInternal(value)
        return VALUE_BYTES

    def check_text(value: Any) -> int:
        if type(value) is not str:
            raise TypeError
        return len(value.encode())

    def check_binary(value: Any) -> int:
        verify(value)
        return len(value)

    def check_decimal(value: Any) -> int:
        verify(value)
        assert isinstance(kind, DecimalType)
        _, digits, exponent = value.as_tuple()
        if isinstance(exponent, str):
            raise ValueError  # the JVM makes NULL of NaN
        # It is not rounded: two keys that are rounded to one number would be one row.
        is_exact = not any(digits[len(digits) + exponent + kind.scale :]) if exponent < -kind.scale else True
        if value and (not is_exact or value.adjusted() >= kind.precision - kind.scale):
            raise ValueError
        return VALUE_BYTES

    def check_nested(value: Any) -> int:
        return check(value) + len(str(value))

    match kind:
        case StringType():
            return check_text
        case BinaryType():
            return check_binary
        case DecimalType():
            return check_decimal
        case ArrayType() | MapType() | StructType() | VariantType():
            return check_nested
    return check
