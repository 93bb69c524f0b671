"""Encodes values for the columns of MariaDB and MySQL."""

from __future__ import annotations

import struct
from decimal import Decimal
from math import isfinite
from typing import Any

from lakegate.syncs.plan import json_numbers
from lakegate.syncs.plan.table_schema import Column
from lakegate.syncs.plan.values import BareText, Bits, Duration, Misfit
from lakegate.syncs.targets.encode import (
    PLAIN,
    bytes_of,
    clock_in_utc,
    geometry_of,
    in_utc,
    no_whole_number,
    number_of,
    text_of,
    unmarked,
)

TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"})
BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "year"})
TIMES = frozenset({"date", "time", "datetime", "timestamp"})
SHAPES = frozenset(
    {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometrycollection", "geomcollection"}
)
NOT_FINITE = "NaN and infinities have no place in a column of MariaDB or MySQL"


def plain(column: Column) -> frozenset[type]:
    """See `rows_of`."""
    usual = (PLAIN | {bool}) - {float, Decimal}
    if column.kind in TIMES:
        return usual - {str, int, bool}
    if column.kind in ("json", "vector", *BINARIES):
        return usual - {bool, int} if column.kind in BINARIES else usual - {bool}
    return usual


def encode(column: Column, value: Any) -> object:
    """See `encoded`."""
    kind = column.kind
    if isinstance(value, float | Decimal):
        if isfinite(value):
            if kind in TIMES:
                no_whole_number(column, value)
            return value
        if kind in TEXTS and kind not in ("enum", "set", "json"):
            return json_numbers.said(value)
        raise Misfit(NOT_FINITE)
    if kind in TIMES:
        return _time(column, value)
    if kind in BINARIES:
        return bytes_of(value)
    if kind in SHAPES and isinstance(value, dict) and "wkb" in value:
        wkb, srid = geometry_of(value)
        return struct.pack("<I", srid) + wkb
    if kind == "bit":
        return _bits(value)
    if kind in NUMBERS:
        return number_of(value)
    if kind == "vector" and isinstance(value, list):
        return struct.pack(f"<{len(value)}f", *value)
    if kind == "set" and isinstance(value, list):
        return ",".join(map(str, value))
    if kind == "json" and isinstance(value, bool):
        return json_numbers.dumps(value)
    if isinstance(value, dict | list | Duration | tuple):
        return text_of(value)
    return unmarked(value)


def _time(column: Column, value: object) -> object:
    no_whole_number(column, value)
    if isinstance(value, Duration):
        return text_of(value)
    if not isinstance(value, str):
        return value
    match column.kind:
        case "datetime" | "timestamp":
            return in_utc(value)
        case "time":
            return clock_in_utc(value)
        case _:
            return str(value).removesuffix("Z")


def _bits(value: object) -> object:
    if isinstance(value, Bits):
        return int(value, 2)
    if isinstance(value, BareText):
        raise Misfit("a text for a column of bits, in an envelope without a schema: turn schemas on at the converter")
    return unmarked(value)
