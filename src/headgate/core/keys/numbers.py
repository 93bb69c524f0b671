"""JSON of sources and targets, with the numbers that it says: a float holds 17 digits, a decimal of a database may have more."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any

DIGITS_MAX = 150_000
"""A number with more places before or behind its point is refused: no database has it, and written out it fills memory."""


def loads(text: str | bytes) -> Any:
    """JSON as Python has it; a number that a float would change is a Decimal.

    Raises:
        ValueError: It is no JSON.
    """
    return json.loads(text, parse_float=_exact)


def dumps(value: object) -> str:
    """JSON with the characters that it has; what is below the first level has a float's digits."""
    return json.dumps(value, ensure_ascii=False, default=float)


def _exact(text: str) -> float | Decimal:
    rounded = float(text)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        exact = Decimal("inf")
    if exact.is_infinite() or (exact and abs(exact.adjusted()) > DIGITS_MAX):
        raise ValueError(f"a number has more than {DIGITS_MAX:,} places")
    return rounded if exact == Decimal(repr(rounded)) else exact
