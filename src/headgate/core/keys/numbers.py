"""JSON of sources and targets, with the numbers that it says: a float holds 17 digits, a decimal of a database may have more."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any


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
    exact = Decimal(text)
    return rounded if exact == Decimal(repr(rounded)) else exact
