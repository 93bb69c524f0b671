"""What Spark's plans say of a statement and of its source: why asking again may not give the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame

from headgate.core.ids import TableLocation
from headgate.delta.jvm import Jvm, scala_object

PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern$"
EXPRESSIONS = "org.apache.spark.sql.classic.ExpressionUtils"
TAKES_SOME = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample"})
"""Nodes of plans that Spark calls deterministic, though which rows they give depends on the order in which rows come."""
MAY_TAKE_SOME = frozenset({"Aggregate", "Deduplicate", "Window"})
"""Nodes of which it depends on what is read of their rows."""
IN_ANY_ORDER = frozenset({"Count", "Max", "Min"})
"""Aggregate functions that are certain to say the same of rows in another order; not sums, which floats round on the way."""


def kind(thing: Any) -> str:
    """Name of a JVM object's class."""
    return str(thing.getClass().getSimpleName())


def analysed(frame: DataFrame) -> Any:
    """Its plan, with names resolved."""
    return frame._jdf.queryExecution().analyzed()


def obstacles_of_plan(jvm: Jvm, plan: Any, what: str) -> list[str]:
    """Of a plan or an expression."""
    patterns = scala_object(jvm.root, PATTERNS)
    found = []
    if not plan.deterministic():
        found.append(f"{what} is not deterministic")
    if plan.containsPattern(patterns.CURRENT_LIKE()):
        found.append(f"{what} says what time it is")
    if plan.containsPattern(patterns.PLAN_EXPRESSION()):
        found.append(f"{what} has a sub-query")
    return found


def obstacles_of_source(jvm: Jvm, source: DataFrame, table: TableLocation, read: Sequence[Column] | None) -> list[str]:
    """Why a source may say something else later; of an INSERT, only what it reads of its own table.

    Args:
        jvm: Of the source's session.
        source: Of a MERGE or an INSERT.
        table: The one that the statement changes.
        read: What the pairs' condition of a MERGE reads of the source: only that is asked again. None: an INSERT.
    """
    plan = analysed(source)
    is_insert = read is None
    found = [] if is_insert else obstacles_of_plan(jvm, plan, "its source")
    if read is not None and _takes_some(jvm, plan, source, read):
        found.append("its source takes some rows of many, which may be others later")
    if is_insert and plan.containsPattern(scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION()):
        found.append("its source has a sub-query")
    own = str(jvm.delta_log(table).dataPath())
    for leaf in jvm.from_seq(plan.collectLeaves()):
        delta = _delta_index(leaf)
        feed = _change_feed(leaf)
        if any(read is not None and str(read.deltaLog().dataPath()) == own for read in (delta, feed)):
            found.append("its source reads the table itself")
        elif not _is_frozen(leaf, delta) and not (is_insert and kind(leaf) != "DataSourceV2Relation"):
            found.append("its source may change: read a Delta table as of a version, or write the source down first")
    return found


def _takes_some(jvm: Jvm, plan: Any, source: DataFrame, read: Sequence[Column]) -> bool:
    """Whether what is read of a source may be other rows where those that it is made of come in another order."""
    kinds = {kind(node) for node, _ in _nodes(jvm, plan)}
    if kinds & TAKES_SOME:
        return True
    if not kinds & MAY_TAKE_SOME:
        return False
    # Spark leaves out what is not read: of the latest change of each key, what the changes are.
    pruned = source.select(*read)._jdf.queryExecution().optimizedPlan()
    return any(
        kind(node) in MAY_TAKE_SOME and not _is_in_any_order(jvm, node, above) for node, above in _nodes(jvm, pruned)
    )


def _is_in_any_order(jvm: Jvm, node: Any, above: Sequence[Any]) -> bool:
    """Whether a node's rows, as those above read them, are the same in whatever order its own come."""
    if kind(node) != "Window":
        return all(each in IN_ANY_ORDER for said in jvm.from_seq(node.expressions()) for each in _aggregates(jvm, said))
    said = jvm.from_seq(node.windowExpressions())
    functions = {kind(expression.child().windowFunction()) for expression in said}
    if functions != {"RowNumber"} or any(
        kind(each) != "AttributeReference" for each in jvm.from_seq(node.partitionSpec())
    ):
        return False
    # Every partition has the same numbers, whichever row has which.
    known = node.windowOutputSet()
    for each in jvm.from_seq(node.partitionSpec()):
        known = getattr(known, "$plus")(each)
    for reader in reversed(above):
        if not reader.references().subsetOf(known):
            return False
        if kind(reader) != "Filter":
            return kind(reader) in ("Aggregate", "Project")
    return False


def _aggregates(jvm: Jvm, expression: Any) -> Iterator[str]:
    """Kinds of the aggregate functions in an expression."""
    if kind(expression) == "AggregateExpression":
        yield kind(expression.aggregateFunction())
    for child in jvm.from_seq(expression.children()):
        yield from _aggregates(jvm, child)


def _nodes(jvm: Jvm, plan: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Of a plan, without those of its sub-queries; each with those above it, from the root down."""
    yield plan, above
    for child in jvm.from_seq(plan.children()):
        yield from _nodes(jvm, child, (*above, plan))


def listed(jvm: Jvm, source: DataFrame) -> list[tuple[list[str], int]]:
    """The files of each relation that a source reads as files: their names, and how large they are in all."""
    join = getattr(jvm.root, "org.apache.hadoop.util.StringUtils").arrayToString
    found = []
    for leaf in jvm.from_seq(analysed(source).collectLeaves()):
        if _delta_index(leaf) is None and _is_listing(leaf):
            listing = leaf.relation().location()
            found.append((sorted(str(join(listing.inputFiles())).split(",")), int(listing.sizeInBytes())))
    return found


def _is_frozen(leaf: Any, delta: Any) -> bool:
    """Whether what a source reads from is the same whenever it is read."""
    if delta is not None:
        return bool(delta.isTimeTravelQuery())
    match kind(leaf):
        case "LocalRelation" | "Range" | "OneRowRelation":
            return True
        case "LogicalRDD":
            return str(leaf.rdd().outputDeterministicLevel()) != "INDETERMINATE"
        case "LogicalRelation":
            return _is_listing(leaf)
    return False


def _is_listing(leaf: Any) -> bool:
    """Whether it is files, listed when it was made; a catalog's partitions are listed anew."""
    if kind(leaf) != "LogicalRelation" or not _has_method(leaf.relation(), "location"):
        return False
    return kind(leaf.relation().location()) == "InMemoryFileIndex"


def _delta_index(leaf: Any) -> Any | None:
    """What a relation of a Delta table reads its files from; None for others."""
    if kind(leaf) != "LogicalRelation" or not _has_method(leaf.relation(), "location"):
        return None
    index = leaf.relation().location()
    return index if "Tahoe" in kind(index) else None


def _change_feed(leaf: Any) -> Any | None:
    """The change feed of a Delta table that a relation reads; None for others."""
    is_one = kind(leaf) == "LogicalRelation" and kind(leaf.relation()) == "DeltaCDFRelation"
    return leaf.relation() if is_one else None


def _has_method(thing: Any, method: str) -> bool:
    """Whether a JVM object has a method of this name."""
    return any(found.getName() == method for found in thing.getClass().getMethods())
