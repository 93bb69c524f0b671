"""How a request table names the columns of the table that its requests are for, and finds them again when they have new names.

A column is known by its physical name, which a rename leaves alone; without column mapping that is its name. Parquet and Delta
refuse some characters in names: `first name` is stored as `first%20name`.

Rules for editors: pure functions over names; whatever is not found is said, never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_REFUSED = re.compile(r"[ ,;{}()\n\t=%]")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")


def stored_name(name: str) -> str:
    """The name of a field of a request table for a column of the table."""
    return _REFUSED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def column_name(stored: str) -> str:
    """The column that a field of a request table is for."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where the columns are that requests were stored for."""

    names: tuple[str, ...]
    """As the table has them now, in the order stored; of those that it has."""
    missing: tuple[str, ...]
    """That the table has no more, as they were called when the requests were stored."""


def find_columns(stored: Sequence[str], physical: Sequence[str] | None, table: Mapping[str, str]) -> Found:
    """Finds stored columns in a table.

    Args:
        stored: Their names when the requests were stored.
        physical: Their physical names; None where they were not noted.
        table: Name → physical name of each column that the table has now.
    """
    by_physical = {one: name for name, one in table.items()}
    by_name = {name.lower(): name for name in table}
    names: list[str] = []
    missing: list[str] = []
    for place, name in enumerate(stored):
        known = name if physical is None or place >= len(physical) else physical[place]
        found = by_name.get(name.lower()) if physical is None else None
        found = found or by_physical.get(known) or by_name.get(name.lower())
        (missing if found is None else names).append(found or name)
    return Found(names=tuple(names), missing=tuple(missing))


def is_same(one: Iterable[str], other: Iterable[str]) -> bool:
    """Whether two lists name the same columns in the same order; upper and lower case do not count."""
    return [name.lower() for name in one] == [name.lower() for name in other]
