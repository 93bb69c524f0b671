"""Decides from a file's statistics whether a row may match a condition. Statistics can only prove that there is none.

A condition is given as Spark's JSON of its analysed expression: nodes in pre-order, each with its number of children. A
node that this module does not know counts as true for every row.

Rules for editors:
- Absent, null or odd statistics prove nothing. Bounds of strings may be truncated, and are still bounds. Bounds of floating
  point omit NaN, and those of timestamps are truncated to milliseconds: neither is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from lakegate.delta.actions import Body

INTEGERS = ("byte", "short", "integer", "long")
MIRRORED = {
    "LessThan": "GreaterThan",
    "GreaterThan": "LessThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "EqualTo": "EqualTo",
    "EqualNullSafe": "EqualNullSafe",
}
EPOCH = date(1970, 1, 1).toordinal()
Value = int | str
Bounds = tuple[Any, Any]
"""The smallest and the largest value."""
NOWHERE: Bounds = (None, None)
"""Bounds of NULL."""
DEPTH_MAX = 200
"""Deeper conditions are not parsed: for example an OR of many parts, which is a chain."""


@dataclass(frozen=True, slots=True)
class Everything:
    """A condition that is unknown here, or always true."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison of a column and a literal of the same kind; `by` is the name of Spark's expression."""

    column: str
    kind: str
    by: str
    value: Value


@dataclass(frozen=True, slots=True)
class Among:
    """A column is one of these literals."""

    column: str
    kind: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Both:
    """A conjunction (AND)."""

    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Either:
    """A disjunction (OR)."""

    left: Condition
    right: Condition


Condition = Everything | Compared | Among | Both | Either


def parse(expression: str) -> Condition:
    """Parses Spark's JSON of an analysed expression; `Everything` for parts that are unknown here."""
    try:
        nodes = iter(json.loads(expression))
        return _condition(_tree(nodes, DEPTH_MAX))
    except (ValueError, KeyError, TypeError, StopIteration):
        return Everything()


def may_hold(condition: Condition, file: Body, columns: Mapping[str, str]) -> bool:
    """Returns True if a file may have a row that matches a condition.

    Args:
        condition: As parsed.
        file: Its `add`.
        columns: Column name → name in the log; other columns have no statistics.
    """
    return _may(condition, lambda column, kind: _bounds(file, columns.get(column), kind))


def may_hold_for(condition: Condition, row: Mapping[str, Value | None]) -> bool:
    """Returns True if a row may match a condition.

    Args:
        condition: As parsed.
        row: The known values of the row, by column name: integers, strings, NULL.
    """

    def bounds(column: str, kind: str) -> Bounds | None:
        if column not in row:
            return None
        value = row[column]
        return NOWHERE if value is None else (value, value)

    return _may(condition, bounds)


def columns_of(condition: Condition) -> frozenset[str]:
    """Returns the columns in a condition that have values of a kind that `may_hold_for` takes."""
    match condition:
        case Both(left, right) | Either(left, right):
            return columns_of(left) | columns_of(right)
        case Compared(column, kind) | Among(column, kind):
            return frozenset({column} if kind != "date" else ())
        case Everything():
            return frozenset()


def _may(condition: Condition, bounds: Callable[[str, str], Bounds | None]) -> bool:
    match condition:
        case Both(left, right):
            return _may(left, bounds) and _may(right, bounds)
        case Either(left, right):
            return _may(left, bounds) or _may(right, bounds)
        case Compared(column, kind, by, value):
            found = bounds(column, kind)
            return found is None or _is_within(by, found, value)
        case Among(column, kind, values):
            found = bounds(column, kind)
            return found is None or any(_is_within("EqualTo", found, value) for value in values)
        case Everything():
            return True


def _is_within(by: str, bounds: Bounds, value: Any) -> bool:
    if bounds == NOWHERE:
        return False  # no comparison with NULL is true
    low, high = bounds
    match by:
        case "EqualTo" | "EqualNullSafe":
            return bool(low <= value <= high)
        case "LessThan":
            return bool(low < value)
        case "LessThanOrEqual":
            return bool(low <= value)
        case "GreaterThan":
            return bool(high > value)
        case "GreaterThanOrEqual":
            return bool(high >= value)
    return True


def _bounds(file: Body, name: str | None, kind: str) -> Bounds | None:
    """Returns the smallest and the largest value of a column in a file; None if they are not certain."""
    if name is None:
        return None
    partition = file.get("partitionValues") or {}
    if name in partition:
        value = _value(partition[name], kind)
        return None if value is None else (value, value)
    try:
        stats = json.loads(file.get("stats") or "{}")
    except ValueError:
        return None
    bounds = [_value((stats.get(which) or {}).get(name), kind) for which in ("minValues", "maxValues")]
    low, high = bounds
    return None if low is None or high is None else (low, high)


def _value(text: Any, kind: str) -> Value | None:
    """Converts a value of statistics or of a partition; None for null, an empty partition value, or another kind: not certain."""
    try:
        if kind in INTEGERS:
            return int(text) if isinstance(text, (int, str)) and not isinstance(text, bool) else None
        if kind == "date":
            return date.fromisoformat(text).toordinal() - EPOCH if isinstance(text, str) else None
    except ValueError:
        return None
    return text if isinstance(text, str) and text != "" else None


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    body: Mapping[str, Any]
    children: tuple[_Node, ...]


def _tree(nodes: Iterator[Mapping[str, Any]], depth_left: int) -> _Node:
    if depth_left == 0:
        raise ValueError
    body = next(nodes)
    children = []
    for _ in range(body["num-children"]):
        # No generator expression: it would turn StopIteration into another error.
        children.append(_tree(nodes, depth_left - 1))
    return _Node(body["class"].rsplit(".", 1)[-1], body, tuple(children))


def _condition(node: _Node) -> Condition:
    match node.name:
        case "And":
            return Both(_condition(node.children[0]), _condition(node.children[1]))
        case "Or":
            return Either(_condition(node.children[0]), _condition(node.children[1]))
        case "In":
            column = _column(node.children[0])
            if column is None:
                return Everything()
            listed = [_literal(child, column[1]) for child in node.children[1:]]
            values = tuple(value for value in listed if value is not None)
            return Among(*column, values) if len(values) == len(listed) else Everything()
        case name if name in MIRRORED:
            for first, second, by in ((0, 1, name), (1, 0, MIRRORED[name])):
                column = _column(node.children[first])
                value = None if column is None else _literal(node.children[second], column[1])
                if column is not None and value is not None:
                    return Compared(*column, by, value)
    return Everything()


def _column(node: _Node) -> tuple[str, str] | None:
    """Returns name and type of a column; a cast to a wider integer type changes no value."""
    if node.name == "Cast" and node.body.get("dataType") in INTEGERS and node.children[0].name == "AttributeReference":
        inner = node.children[0].body.get("dataType")
        if inner in INTEGERS and INTEGERS.index(inner) <= INTEGERS.index(node.body["dataType"]):
            return str(node.children[0].body["name"]), str(inner)
    if node.name != "AttributeReference":
        return None
    kind = node.body.get("dataType")
    return (str(node.body["name"]), kind) if kind in (*INTEGERS, "string", "date") else None


def _literal(node: _Node, kind: str) -> Value | None:
    """Returns a literal of a column's kind; None for null and for other kinds."""
    if node.name == "Cast" and node.body.get("dataType") in INTEGERS and node.children[0].name == "Literal":
        inner = node.children[0].body.get("dataType")
        is_wider = inner in INTEGERS and INTEGERS.index(inner) <= INTEGERS.index(node.body["dataType"])
        return _literal(node.children[0], kind) if is_wider else None
    if node.name != "Literal" or node.body.get("value") is None:
        return None
    given, value = node.body.get("dataType"), node.body["value"]
    if kind in INTEGERS:
        return int(value) if given in INTEGERS else None
    if given != kind:
        return None
    return date.fromisoformat(value).toordinal() - EPOCH if kind == "date" else str(value)
