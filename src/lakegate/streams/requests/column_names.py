"""Names the columns of the target in a request table, and finds them again after they were renamed.

A column is identified by its physical name, which a rename does not change; without column mapping that is its name. Parquet
and Delta refuse some characters in names: `first name` is stored as `first%20name`.

Rules for editors: pure functions over names; a name that is not found is reported, never left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_REFUSED = re.compile(r"[ ,;{}()\n\t=%]")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")


def stored_name(name: str) -> str:
    """Returns the name of the field of a request table for a column of the target."""
    return _REFUSED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def column_name(stored: str) -> str:
    """Returns the name of the target's column for a field of a request table."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The current names of the columns that requests were stored for."""

    names: tuple[str, ...]
    """Current names of the columns that the table has, in the order in which they were stored."""
    missing: tuple[str, ...]
    """Names, at the time of storing, of the columns that the table no longer has."""


def find_columns(stored: Sequence[str], physical: Sequence[str] | None, table: Mapping[str, str]) -> Found:
    """Finds stored columns in a table.

    Args:
        stored: The columns' names when the requests were stored.
        physical: The columns' physical names; None where they were not recorded.
        table: Name → physical name of each column of the table now.
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
    """Returns True if two lists name the same columns in the same order; case is ignored."""
    return [name.lower() for name in one] == [name.lower() for name in other]
