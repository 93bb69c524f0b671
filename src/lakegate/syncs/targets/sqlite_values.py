"""Encodes values for SQLite's columns, by the affinity of each column's declared type.

Source: "Datatypes In SQLite", 3.1 "Determination Of Column Affinity".
"""

from __future__ import annotations

import re
from datetime import date, datetime, time
from decimal import Decimal
from math import isnan
from typing import Any

from lakegate.syncs.plan import json_numbers
from lakegate.syncs.plan.table_schema import Column
from lakegate.syncs.plan.values import BareNumber, BareText, Bits, Duration, Misfit
from lakegate.syncs.targets.encode import bytes_of, no_whole_number, number_of, text_of, unmarked

PLAIN = frozenset({type(None), str, int, bytes, bool})
NUMBERS = re.compile(
    r"(tiny|small|medium|big|unsigned big )?int(eger|\d)?\b|numeric|decimal|number|real|double|float|money"
)
TIMES = re.compile(r"date|time|interval")
BINARIES = re.compile(r"blob|binary|varbinary|bytea|(tiny|medium|long)blob")


def plain(column: Column) -> frozenset[type]:
    """See `rows_of`."""
    return PLAIN


def encode(column: Column, value: Any) -> object:
    """See `encoded`."""
    kind = column.kind
    if BINARIES.match(kind) and isinstance(value, BareText):
        return bytes_of(value)
    if TIMES.match(kind) and isinstance(value, BareNumber):
        no_whole_number(column, value)
    is_number = NUMBERS.match(kind) is not None
    match value:
        case float():
            return json_numbers.said(value) if isnan(value) else value  # the driver would store NaN as NULL
        case Bits():
            return int(value, 2) if is_number or _is_numeric(kind) else str(value)
        case Duration():
            return int(value) if is_number else text_of(value)
        case BareText() if is_number:
            return _number(value)
        case datetime() | date() | time():
            return value.isoformat()
        case dict() if is_number:
            return number_of(value)
        case dict() | list() | tuple():
            return json_numbers.dumps(value)
        case Decimal() | str() | int():
            return str(value) if isinstance(value, Decimal) else unmarked(value)
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return text_of(value)


def _is_numeric(kind: str) -> bool:
    """Returns whether the column converts a text of digits to a number."""
    return not any(word in kind for word in ("char", "clob", "text", "blob")) and kind != ""


def _number(value: str) -> str:
    try:
        float(value)
    except ValueError as error:
        raise Misfit("a text for a column of numbers, in an envelope without a schema") from error
    return str(value)
