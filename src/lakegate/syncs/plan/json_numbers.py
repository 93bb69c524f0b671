"""Reads and writes JSON with all digits of its numbers: a float holds 17 digits, a decimal of a database may have more."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

DIGITS_MAX = 150_000
"""The maximum number of digits before or after the point. No database has more, and written out they would fill the memory."""
WRITE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def loads(text: str | bytes) -> Any:
    """Parses JSON; a number that a float would write differently becomes a Decimal.

    Raises:
        ValueError: The text is not JSON.
    """
    return json.loads(text, parse_float=_exact)


def dumps(value: object) -> str:
    """Writes JSON with the characters and the digits of the value.

    Values that JSON cannot represent are written as by PostgreSQL's `to_json`: moments as ISO 8601, bytes as `\\x` and hex,
    NaN and infinities as text.
    """
    try:
        return WRITE(value)
    except (TypeError, ValueError):
        return "".join(_parts(value))


def _parts(value: object) -> Iterator[str]:
    match value:
        case None | bool() | str() | int():
            yield WRITE(value)
        case float():
            yield WRITE(value) if math.isfinite(value) else WRITE(said(value))
        case Decimal():
            yield str(value) if value.is_finite() else WRITE(said(value))
        case date() | time():  # includes datetime
            yield WRITE(value.isoformat())
        case timedelta():
            yield WRITE(str(value))
        case bytes() | bytearray():
            yield WRITE(f"\\x{value.hex()}")
        case dict():
            yield from _joined("{}", ([WRITE(str(name)), ": ", *_parts(one)] for name, one in value.items()))
        case list() | tuple():
            if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):  # a map, as in Parquet
                yield from _parts(dict(value))
            else:
                yield from _joined("[]", (_parts(one) for one in value))
        case _:
            yield WRITE(str(value))


def said(value: float | Decimal) -> str:
    """Returns the text NaN, Infinity or -Infinity."""
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _joined(around: str, parts: Any) -> Iterator[str]:
    yield around[0]
    for number, part in enumerate(parts):
        if number:
            yield ", "
        yield from part
    yield around[1]


def _exact(text: str) -> float | Decimal:
    rounded = float(text)
    if repr(rounded) == text:
        return rounded
    try:
        exact = Decimal(text)
    except InvalidOperation:
        exact = Decimal("inf")
    if exact.is_infinite() or (exact and abs(exact.adjusted()) > DIGITS_MAX):
        raise ValueError(f"a number has more than {DIGITS_MAX:,} places")
    return exact
