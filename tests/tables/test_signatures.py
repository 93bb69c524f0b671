"""`headgate.DeltaTable` is the stock class but for its import: every method is there, with the same parameters."""

from __future__ import annotations

import inspect

import delta.tables as stock
import pytest

from headgate.tables import table as ours

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
    signature = inspect.signature(method)  # type: ignore[arg-type]
    return [(one.name, one.kind, one.default) for one in signature.parameters.values()]


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=[f"{kind}.{name}" for kind, name in METHODS])
def test_every_method_has_the_stock_parameters(kind: str, name: str) -> None:
    """Names, order, kinds and defaults."""
    theirs, own = PAIRS[kind]
    assert parameters(getattr(own, name)) == parameters(getattr(theirs, name))


def test_the_classes_are_the_stock_ones() -> None:
    """Code that asks for the stock class takes ours; and the stock class has methods that we have seen."""
    assert all(issubclass(own, theirs) for theirs, own in PAIRS.values())
    assert len(METHODS) > 40
    handled = {"delete", "update", "merge", "optimize", "alias", "forPath", "forName", "convertToDelta"}
    handled |= {"create", "createIfNotExists", "replace", "createOrReplace"}
    handled |= {"restoreToVersion", "restoreToTimestamp", "vacuum"}
    handled |= {"upgradeTableProtocol", "addFeatureSupport", "dropFeatureSupport"}
    assert {name for name in vars(ours.DeltaTable) if not name.startswith(("_", "explain"))} == handled
