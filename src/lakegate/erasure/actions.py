"""Searches the actions of a Delta log: statistics, partition values, paths, and the texts of commits.

Rules for editors: pure. An action names a person if it has all columns of the key, each in whatever place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakegate.erasure.persons import Persons

STATISTICS = ("minValues", "maxValues")
PARTITION = ("partitionValues", "partitionValues_parsed")
NUMBERS_ONLY = "operationMetrics"
"""The object of a commit whose texts are counts."""


@dataclass(frozen=True, slots=True)
class Named:
    """Persons that an action names."""

    where: str
    """As `add: statistics`, `commitInfo: operationParameters.predicate`."""
    column: str
    persons: frozenset[int]


def named_in(action: Mapping[str, Any], persons: Persons, *, is_strict: bool = True) -> list[Named]:
    """Returns the persons that one action names, by place and column.

    Args:
        action: With one key, its kind; in a Parquet checkpoint the other kinds are None.
        persons: The persons.
        is_strict: Statistics count for the key columns alone; otherwise for every column of the same name.
    """
    found: dict[tuple[str, str], set[int]] = {}
    for kind, body in action.items():
        for where, name, number in _hits(body, (), persons, is_strict):
            found.setdefault((f"{kind}: {where}", name), set()).add(number)
    whole = persons.whole((number, name) for (_, name), numbers in found.items() for number in numbers)
    hits = (Named(where, name, frozenset(numbers & whole)) for (where, name), numbers in found.items())
    return [one for one in hits if one.persons]


def _hits(value: Any, keys: tuple[str, ...], persons: Persons, is_strict: bool) -> Iterator[tuple[str, str, int]]:
    for path, leaf in leaves(value, keys):
        if NUMBERS_ONLY in path:
            continue
        where, names = _place(path, persons, is_strict)
        if names is not None:
            yield from ((where, name, number) for name in names for number in persons.with_value(name, leaf))
        elif isinstance(leaf, str):
            numbers = persons.in_path(leaf) if path[-1:] == ("path",) else persons.in_text(leaf)
            yield from ((where, name, number) for number, name in numbers)


def _place(path: tuple[str, ...], persons: Persons, is_strict: bool) -> tuple[str, list[str] | None]:
    """Returns the place of a leaf for people; and the key columns that its value is of, None for a text."""
    for at, key in enumerate(path):
        if key in STATISTICS or key in PARTITION:
            below = tuple(part.lower() for part in path[at + 1 :])
            names = [
                name
                for name, column in persons.columns.items()
                if below in column.paths or (not is_strict and below and below[-1] in column.lower_names)
            ]
            return ("statistics" if key in STATISTICS else "partition value"), names
    return ".".join(path), None


def leaves(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yields each plain value inside of objects, lists, maps of Arrow and texts that are JSON, with the keys that lead to it."""
    match value:
        case None:
            return
        case Mapping():
            for key, inner in value.items():
                yield from leaves(inner, (*keys, str(key)))
        case [(str(), _), *_] if all(isinstance(one, tuple) for one in value):
            yield from leaves(dict(value), keys)
        case list() | tuple():
            for inner in value:
                yield from leaves(inner, keys)
        case str() if value[:1] in ("{", "["):
            try:
                parsed = json.loads(value)
            except (ValueError, RecursionError):
                yield keys, value
            else:
                yield from leaves(parsed, keys)
        case _:
            yield keys, value
