"""JSON of sources and targets, with the digits that it has: a float holds 17, a decimal of a database may have more."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

DIGITS_MAX = 150_000
"""A number with more places before or behind its point is refused: no database has it, and written out it fills memory."""
WRITE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def loads(text: str | bytes) -> Any:
    """JSON as Python has it; a number that a float would write in another way is a Decimal.

    Raises:
        ValueError: It is no JSON.
    """
    return json.loads(text, parse_float=_exact)


def dumps(value: object) -> str:
    """JSON with the characters and the digits that the value has.

    What JSON has no word for is written as PostgreSQL's `to_json` does: moments as ISO 8601 says, bytes as `\\x` and hex,
    numbers that are none (NaN) as texts.
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
        case date() | time():  # of which datetime
            yield WRITE(value.isoformat())
        case timedelta():
            yield WRITE(str(value))
        case bytes() | bytearray():
            yield WRITE(f"\\x{value.hex()}")
        case dict():
            yield from _joined("{}", ([WRITE(str(name)), ": ", *_parts(one)] for name, one in value.items()))
        case list() | tuple():
            if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):  # a map, as Parquet has it
                yield from _parts(dict(value))
            else:
                yield from _joined("[]", (_parts(one) for one in value))
        case _:
            yield WRITE(str(value))


def said(value: float | Decimal) -> str:
    """NaN, Infinity or -Infinity."""
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
