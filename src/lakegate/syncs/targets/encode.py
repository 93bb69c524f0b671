"""The parts that the encoders of all dialects share: encode values for columns, and encode rows.

Rules for editors: a value is encoded as its column holds it, or is refused as `Misfit`; it is never changed to fit. The kind of
a value is decided earlier (`lakegate.syncs.plan.values`). This module looks only at the column's type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from lakegate.syncs.plan import json_numbers
from lakegate.syncs.plan.table_schema import Column
from lakegate.syncs.plan.values import BareText, Bits, Duration, Misfit, Undecoded, clock, variable_decimal

Encode = Callable[[Column, Any], object]
PLAIN = frozenset({type(None), str, int, float, Decimal, bytes, date, datetime, time})
"""Types that most columns accept unchanged."""
EWKB_SRID = 0x2000_0000
"""A flag in a geometry's type: a reference system follows."""


def rows_of(
    rows: Iterable[Sequence[Any]],
    columns: Sequence[Column | None],
    plain: Callable[[Column], frozenset[type]],
    encode: Encode,
) -> Iterator[Sequence[Any]]:
    """Yields rows as the driver accepts them.

    Args:
        rows: Values in the order of `columns`.
        columns: The target's columns; None for one of Lakegate's own columns.
        plain: Returns the types of values that a column accepts unchanged.
        encode: Encodes all other values.

    Raises:
        Misfit: A value does not fit its column.
    """
    ways = [(n, column, plain(column)) for n, column in enumerate(columns) if column is not None]
    for row in rows:
        found = list(row)
        for n, column, types in ways:
            value = found[n]
            if value.__class__ not in types:
                found[n] = encoded(column, value, encode)
        yield found


def encoded(column: Column, value: Any, encode: Encode) -> object:
    """Encodes one value.

    Raises:
        Misfit: The value does not fit.
    """
    if value is None:
        return None
    if isinstance(value, Undecoded):
        raise Misfit(value.reason)
    if isinstance(value, list) and value and all(isinstance(one, tuple) for one in value):
        value = dict(value)  # a map, as Parquet represents it
    try:
        return encode(column, value)
    except Misfit as error:
        raise Misfit(f"{column.name}: {error}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, struct.error) as error:
        raise Misfit(f"{column.name}: a value does not fit a column of type {column.kind}: {error}") from error


def unmarked(value: object) -> object:
    """Returns the plain number or text of a value, without its marker class."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def text_of(value: object) -> str:
    """Returns a value as text, for a column that accepts only text."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value) if value - value == 0 else json_numbers.said(value)
        case Duration():
            return clock(value)
        case bytes() | bytearray():
            return f"\\x{value.hex()}"
        case datetime():
            return value.isoformat(" ")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return clock(value // timedelta(microseconds=1))
        case dict() | list() | tuple():
            return json_numbers.dumps(value)
        case _:
            return str(value)


def no_whole_number(column: Column, value: object) -> None:
    """Refuses a bare number for a column of dates, times or intervals.

    Raises:
        Misfit: The value is a number.
    """
    if isinstance(value, int | float | Decimal) and not isinstance(value, Duration):
        raise Misfit(
            f"a number for a column of type {column.kind}: turn schemas on at the converter, or set "
            "time.precision.mode=isostring at the connector"
        )


def number_of(value: object) -> object:
    """Returns a value for a column of numbers."""
    match value:
        case bool():
            return int(value)
        case Bits():
            return int(value, 2)
        case dict() if value.keys() == {"scale", "value"}:
            return variable_decimal(value)
        case dict() | list():
            return json_numbers.dumps(value)
        case _:
            return unmarked(value)


def bytes_of(value: object, bits: int = 0) -> object:
    """Returns a value for a binary column. A bit string is stored with its highest bit first, in as many bytes as needed."""
    match value:
        case BareText():
            return value.bytes()
        case bytearray() | memoryview():
            return bytes(value)
        case Bits():
            return int(value, 2).to_bytes((max(len(value), bits) + 7) // 8, "big")
        case bool() | int() | float():
            raise Misfit("a number for a binary column")
        case dict() | list():
            return json_numbers.dumps(value)
        case _:
            return unmarked(value)


def geometry_of(value: Mapping[str, Any]) -> tuple[bytes, int]:
    """Returns the well-known binary and the reference system of `{"wkb": base64, "srid": …}`."""
    import base64

    wkb, srid = base64.b64decode(value["wkb"], validate=True), value.get("srid") or 0
    order = "<" if wkb[0] == 1 else ">"
    (kind,) = struct.unpack_from(f"{order}I", wkb, 1)
    if kind & EWKB_SRID:
        (own,) = struct.unpack_from(f"{order}I", wkb, 5)
        wkb = wkb[:1] + struct.pack(f"{order}I", kind & ~EWKB_SRID) + wkb[9:]
        srid = srid or own
    return wkb, int(srid)


def in_utc(text: str) -> str | datetime:
    """Returns a moment with a zone as the same moment in UTC without one; any other text unchanged."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text  # the server reports the error
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def clock_in_utc(text: str) -> str:
    """Does the same for a time of day."""
    try:
        there = time.fromisoformat(text)
    except ValueError:
        return text
    if there.tzinfo is None:
        return text
    moment = datetime.combine(date(2000, 1, 2), there)
    return moment.astimezone(UTC).time().isoformat()
