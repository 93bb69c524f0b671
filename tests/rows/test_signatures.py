"""`lakegate.DeltaTable` is the stock class but for its import: every method is there, with the same parameters."""

from __future__ import annotations

import inspect
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import delta.tables as stock
import pytest
from pyspark.sql import SparkSession

from lakegate.errors import InvalidRequest
from lakegate.rows import delta_table as ours
from lakegate.rows.result import Result

PAIRS = {
    name: (getattr(stock, name), getattr(ours, name))
    for name in ("DeltaTable", "DeltaMergeBuilder", "DeltaOptimizeBuilder", "DeltaTableBuilder")
}
METHODS = [
    (kind, name)
    for kind, (theirs, _) in PAIRS.items()
    for name, _ in inspect.getmembers(theirs, callable)
    if not name.startswith("_")
]


def parameters(method: object) -> list[tuple[str, object, object]]:
    """Name, kind and default of each."""
    signature = inspect.signature(method)
    return [(one.name, one.kind, one.default) for one in signature.parameters.values()]


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=[f"{kind}.{name}" for kind, name in METHODS])
def test_every_method_has_the_stock_parameters(kind: str, name: str) -> None:
    """Names, order, kinds and defaults."""
    theirs, own = PAIRS[kind]
    assert parameters(getattr(own, name)) == parameters(getattr(theirs, name))


def members(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_within(narrow: Any, wide: Any) -> bool:
    """Returns whether every value of the one type has the other type, too."""

    def fits(one: Any, other: Any) -> bool:
        return one == other or (
            issubclass(get_origin(one) or one, get_origin(other) or other) and get_args(one) == get_args(other)
        )

    return all(any(fits(one, other) for other in members(wide)) for one in members(narrow))


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=[f"{kind}.{name}" for kind, name in METHODS])
def test_every_method_takes_what_stock_takes_and_gives_ours(kind: str, name: str) -> None:
    """By annotations: no parameter is narrower; what is returned is as narrow, of our class, or said where stock gives None."""
    theirs, own = PAIRS[kind]
    wanted, found = (get_type_hints(getattr(each, name)) for each in (theirs, own))
    assert wanted.keys() <= found.keys()
    for parameter in wanted.keys() - {"return"}:
        assert is_within(wanted[parameter], found[parameter]), parameter
    given = wanted["return"]
    ended = {("DeltaTable", "delete"): Result, ("DeltaTable", "update"): Result}
    expected = ended.get((kind, name), PAIRS.get(getattr(given, "__name__", ""), (given, given))[1])
    assert found["return"] == expected


def test_the_comparison_of_annotations_tells_wide_from_narrow() -> None:
    """As with those that stock Delta has."""
    assert is_within(dict[str, int], dict[str, int] | None)
    assert is_within(bool, int)
    assert not is_within(int | str, str)
    assert not is_within(NoneType, str)
    assert not is_within(dict[str, int], dict[str, str])


def test_settings_of_the_file_system_for_one_table_are_refused() -> None:
    """Commits are made with those of the session; nothing is looked at before it is said."""
    nobody: Any = None
    session: SparkSession = nobody
    with pytest.raises(InvalidRequest, match=r"nothing was done\. Set them for the session"):
        ours.DeltaTable.forPath(session, "/nowhere", {"fs.s3a.access.key": "x"})


def test_the_classes_are_the_stock_ones() -> None:
    """Code that asks for the stock class takes ours; and the stock class has methods that we have seen."""
    assert all(issubclass(own, theirs) for theirs, own in PAIRS.values())
    assert len(METHODS) > 40
    handled = {"delete", "update", "merge", "optimize", "alias", "forPath", "forName", "convertToDelta"}
    handled |= {"create", "createIfNotExists", "replace", "createOrReplace"}
    handled |= {"clone", "cloneAtVersion", "cloneAtTimestamp"}
    handled |= {"restoreToVersion", "restoreToTimestamp", "vacuum"}
    handled |= {"upgradeTableProtocol", "addFeatureSupport", "dropFeatureSupport"}
    assert {name for name in vars(ours.DeltaTable) if not name.startswith(("_", "explain"))} == handled


OWN = [(kind, name) for kind, name in METHODS if name in vars(PAIRS[kind][1])]


@pytest.mark.parametrize(("kind", "name"), OWN, ids=[f"{kind}.{name}" for kind, name in OWN])
def test_every_method_has_help_as_stock_has(kind: str, name: str) -> None:
    """An editor shows our text in place of stock Delta's: what it does, each argument, what comes back."""
    method = getattr(PAIRS[kind][1], name)
    text = inspect.getdoc(method) or ""
    signature = inspect.signature(method)
    assert [one for one in signature.parameters if one != "self" and f"    {one}: " not in text] == []
    assert ("Returns:" in text) == (signature.return_annotation != "None")
    assert not text.startswith("Source")
