"""Statistics prove that a file has no row for a condition, or they prove nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakegate.delta.actions import Action
from lakegate.rows.conflict.data_skipping import Everything, columns_of, may_hold, may_hold_for, parse
from lakegate.rows.conflict.rebase import deleted_rows

CATALYST = "org.apache.spark.sql.catalyst.expressions."
Nodes = list[dict[str, Any]]
COLUMNS = {"k": "col-1", "v": "v", "s": "s", "d": "d", "p": "p", "x": "x"}


def node(expression: str, *children: Nodes, **body: Any) -> Nodes:
    """A node in pre-order, as Spark writes it down."""
    return [
        {"class": CATALYST + expression, "num-children": len(children), **body},
        *(n for child in children for n in child),
    ]


def column(name: str, kind: str = "long") -> Nodes:
    return node("AttributeReference", name=name, dataType=kind)


def literal(value: object, kind: str = "long") -> Nodes:
    return node("Literal", value=None if value is None else str(value), dataType=kind)


def cast(child: Nodes, kind: str) -> Nodes:
    return node("Cast", child, dataType=kind)


def file(**bounds: tuple[object, object]) -> dict[str, Any]:
    """An `add` with these bounds, by the names of the log."""
    stats = {
        "numRecords": 5,
        "minValues": {name: low for name, (low, _) in bounds.items()},
        "maxValues": {name: high for name, (_, high) in bounds.items()},
    }
    return {"path": "f", "partitionValues": {"p": "3"}, "stats": json.dumps(stats)}


def holds(condition: Nodes, add: dict[str, Any]) -> bool:
    return may_hold(parse(json.dumps(condition)), add, COLUMNS)


IS_15 = node("EqualTo", column("k"), literal(15))
NO_TEXT = node("EqualTo", column("s", "string"), literal("b", "string"))
FILE = file(**{"col-1": (10, 20), "s": ("ab", "abz"), "d": ("2026-01-01", "2026-02-01")})


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (IS_15, True),
        (node("EqualTo", column("k"), literal(9)), False),
        (node("EqualTo", literal(21), column("k")), False),
        (node("LessThan", column("k"), literal(10)), False),
        (node("LessThanOrEqual", column("k"), literal(10)), True),
        (node("GreaterThan", column("k"), literal(20)), False),
        (node("GreaterThan", literal(10), column("k")), False),
        (node("GreaterThan", literal(11), column("k")), True),
        (node("In", column("k"), literal(1), literal(20)), True),
        (node("In", column("k"), literal(1), literal(30)), False),
        (node("In", column("k"), literal(1), literal(None)), True),
        (node("And", IS_15, NO_TEXT), False),
        (node("Or", IS_15, NO_TEXT), True),
        (node("Not", IS_15), True),
        (node("EqualTo", column("s", "string"), literal("abc", "string")), True),
        (node("EqualTo", column("d", "date"), literal("2026-01-15", "date")), True),
        (node("EqualTo", column("d", "date"), literal("2026-03-01", "date")), False),
        (node("EqualTo", column("p", "integer"), literal(3, "integer")), True),
        (node("EqualTo", column("p", "integer"), literal(4, "integer")), False),
        (node("EqualTo", cast(column("p", "integer"), "long"), literal(4)), False),
        (node("EqualTo", column("k"), cast(literal(9, "integer"), "long")), False),
        (node("EqualNullSafe", column("k"), literal(None)), True),
    ],
)  # fmt: skip
def test_bounds_decide_where_they_can(condition: Nodes, expected: bool) -> None:
    """Comparisons of a column with a literal, both ways round, and what joins them; partitions are exact."""
    assert holds(condition, FILE) is expected


@pytest.mark.parametrize(
    ("condition", "add"),
    [
        (node("EqualTo", column("k"), literal(9)), {"path": "f"}),
        (node("EqualTo", column("k"), literal(9)), {"path": "f", "stats": "{"}),
        (node("EqualTo", column("k"), literal(9)), file(**{"col-1": (None, None)})),
        (node("EqualTo", column("v"), literal(9)), FILE),
        (node("EqualTo", column("unknown"), literal(9)), FILE),
        (node("EqualTo", column("x", "double"), literal(9, "double")), file(x=(1.0, 2.0))),
        (node("EqualTo", column("x", "timestamp"), literal(9, "timestamp")), file(x=("2026", "2026"))),
        (node("EqualTo", cast(column("k", "long"), "integer"), literal(9, "integer")), FILE),
        (node("EqualTo", column("k", "byte"), cast(literal(300, "integer"), "byte")), FILE),
        (node("EqualTo", column("p", "string"), literal("4", "string")), {"path": "f", "partitionValues": {"p": None}}),
    ],
)
def test_what_is_not_certain_proves_nothing(condition: Nodes, add: dict[str, Any]) -> None:
    """Absent, broken or null statistics, other columns, floating point, times, and casts that may change a value."""
    assert holds(condition, add)


@pytest.mark.parametrize("text", ["", "[]", "{}", '[{"class":"X","num-children":2}]', "[1]"])
def test_what_cannot_be_read_is_everything(text: str) -> None:
    """An expression of another form is not an error."""
    assert parse(text) == Everything()


def test_deleted_rows_are_counted_from_the_actions() -> None:
    """Vectors that grow, and files that go; not where the log does not say how many rows a file has."""
    marked = {"cardinality": 2}
    grown = Action("add", {"path": "a", "deletionVector": {"cardinality": 5}})
    taken = Action("remove", {"path": "a", "deletionVector": marked})
    gone = Action("remove", {"path": "b", "stats": '{"numRecords":10}', "deletionVector": marked})
    assert deleted_rows([grown, taken, gone]) == 3 + 8
    assert deleted_rows([Action("remove", {"path": "b"})]) is None
    assert deleted_rows([Action("add", {"path": "new"})]) is None


def test_a_row_is_ruled_out_by_what_is_known_of_it() -> None:
    """NULL compares to nothing; an unknown value may be any; what is not understood holds."""
    condition = parse(json.dumps(node("And", node("Or", IS_15, NO_TEXT), node("Foo", column("x")))))
    assert columns_of(condition) == {"k", "s"}
    for row, expected in (
        ({"k": 15, "s": "a"}, True),
        ({"k": 14, "s": "b"}, True),
        ({"k": 14, "s": "a"}, False),
        ({"k": None, "s": None}, False),
        ({"k": None}, True),
        ({}, True),
    ):
        assert may_hold_for(condition, row) is expected, row
    among = parse(json.dumps(node("In", column("k"), literal(1), literal(7))))
    assert [may_hold_for(among, {"k": k}) for k in (1, 2, 7, None)] == [True, False, True, False]
    below = parse(json.dumps(node("LessThan", column("k"), literal(3))))
    assert [may_hold_for(below, {"k": k}) for k in (2, 3, None)] == [True, False, False]


@pytest.mark.parametrize("by", ["Or", "And"])
def test_a_chain_of_many_conditions_is_not_understood(by: str) -> None:
    """It is nested as deep as it is long, and may not end in an error."""
    chain = node("EqualTo", column("k"), literal(0))
    for value in range(1, 3_000):
        chain = [{"class": CATALYST + by, "num-children": 2}, *chain, *node("EqualTo", column("k"), literal(value))]
    assert parse(json.dumps(chain)) == Everything()
