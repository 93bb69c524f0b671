"""Reads Spark's plans of a statement and its source: finds reasons why another execution may give another result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame

from lakegate.delta.jvm import Jvm, scala_object
from lakegate.ids import TableLocation

CATALYST = "org.apache.spark.sql.catalyst"
PATTERNS = f"{CATALYST}.trees.TreePattern$"
EXPRESSIONS = "org.apache.spark.sql.classic.ExpressionUtils"
TAKES_SOME = frozenset(
    {
        *("GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample", "AsOfJoin"),
        *("MapInPandas", "FlatMapGroupsInPandas", "FlatMapCoGroupsInPandas"),
        *("MapInArrow", "FlatMapGroupsInArrow", "FlatMapCoGroupsInArrow"),
    }
)
"""Plan nodes that Spark calls deterministic although their result may depend on the order of their input rows."""
MAY_DIFFER = TAKES_SOME | {"Aggregate", "Deduplicate", "Window"}
"""The same, and nodes for which this depends on the columns that are read of their result."""
IS_NOW = re.compile(r"\s*(now|today|yesterday|tomorrow)\b[^#(]* AS ", re.IGNORECASE)
"""A bare text of this kind, under a name: assigned to a time column, Spark casts it later than the plan shows."""
IN_ANY_ORDER = frozenset({"Count", "Max", "Min"})
"""Aggregate functions that certainly do not depend on the order of rows; not sums, because floats round on the way."""


def kind(thing: Any) -> str:
    """Returns the name of a JVM object's class."""
    return str(thing.getClass().getSimpleName())


def analysed(frame: DataFrame) -> Any:
    """Returns the frame's plan, with names resolved."""
    return frame._jdf.queryExecution().analyzed()


def obstacles_of(jvm: Jvm, plan: Any, what: str) -> list[str]:
    """Lists the obstacles of a whole plan, or of a plan made by `alone`."""
    found = []
    if not plan.deterministic():
        found.append(f"{what} is not deterministic")
    if says_time(jvm, plan):
        found.append(f"{what} depends on the current time or user")
    if plan.containsPattern(scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION()):
        found.append(f"{what} has a sub-query")
    return found


def alone(jvm: Jvm, *expressions: Any) -> Any:
    """Makes a plan of these expressions alone, without their input; not to be executed."""
    nodes = getattr(jvm.root, f"{CATALYST}.plans.logical")
    together = getattr(jvm.root, f"{CATALYST}.expressions.Coalesce")(jvm.to_seq(expressions))
    return nodes.Filter(together, nodes.OneRowRelation())


def says_time(jvm: Jvm, plan: Any) -> bool:
    """Returns True if a plan depends on the current time or user; also by a text that Spark plans as a time in each query."""
    if plan.containsPattern(scala_object(jvm.root, PATTERNS).CURRENT_LIKE()):
        return True
    # Spark's own rules are applied, because Spark shortens long lists in a plan's text.
    replaced = scala_object(jvm.root, f"{CATALYST}.optimizer.ReplaceExpressions$").apply(plan)
    return (
        not scala_object(jvm.root, f"{CATALYST}.optimizer.SpecialDatetimeValues$").apply(replaced).fastEquals(replaced)
    )


def may_become_time(jvm: Jvm, projection: Any) -> bool:
    """Returns True if a column is a text that becomes the current time once it is assigned to a time column."""
    return any(IS_NOW.match(str(each.toString())) for each in jvm.from_seq(projection.projectList()))


def obstacles_of_source(jvm: Jvm, source: DataFrame, table: TableLocation, read: Sequence[Column] | None) -> list[str]:
    """Lists the reasons why a source may give another result later; for an INSERT, only reads of its own table.

    Args:
        jvm: Of the source's session.
        source: Of a MERGE or an INSERT.
        table: The table that the statement changes.
        read: Columns of the source in the condition of a MERGE: only these are read again. None: an INSERT.
    """
    plan = analysed(source)
    if read is None:
        has_query = plan.containsPattern(scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION())
        found = ["its source has a sub-query"] if has_query else []
    else:
        reading = _Reading(jvm)
        # Spark's own answer comes first, because walking the plan of a wide source takes long.
        if obstacles_of(jvm, plan, "its source") or any(kind(node) in MAY_DIFFER for node in _nodes(jvm, plan)):
            asked = analysed(source.select(*read))
            reading.follow(asked, asked.outputSet())
        found = obstacles_of(jvm, alone(jvm, *reading.expressions), "its source")
        if reading.takes_some:
            found.append("its source selects some of its rows, and may select others later")
    own = str(jvm.delta_log(table).dataPath())
    queries = [leaf for query in jvm.from_seq(plan.subqueriesAll()) for leaf in jvm.from_seq(query.collectLeaves())]
    if any(_reads(leaf, own) for leaf in queries):
        found.append("its source reads the table itself")
    for leaf in jvm.from_seq(plan.collectLeaves()):
        if _reads(leaf, own):
            found.append("its source reads the table itself")
        elif not _is_frozen(leaf, _delta_index(leaf)) and not (read is None and kind(leaf) != "DataSourceV2Relation"):
            found.append("its source may change: read a Delta table as of a version, or save the source first")
    return found


def takes_some(jvm: Jvm, source: DataFrame) -> bool:
    """Returns True if a source that Spark calls deterministic may give other rows or values when it is read again."""
    plan, reading = analysed(source), _Reading(jvm)
    if any(kind(node) in MAY_DIFFER for node in _nodes(jvm, plan)):
        reading.follow(plan, plan.outputSet())
    return reading.takes_some


class _Reading:
    """Follows which columns of a source's plan nodes are read, if only some columns of the source are read.

    Rows are the same at each read if the read expressions give the same values, and no node selects some of many rows. Columns
    that are not read may differ: for example the values in the newest change of each key, or the time at which rows were loaded.
    """

    def __init__(self, jvm: Jvm) -> None:
        self.expressions: list[Any] = []
        self.takes_some = False
        self._jvm = jvm
        self._sets = scala_object(jvm.root, "org.apache.spark.sql.catalyst.expressions.AttributeSet$")

    def follow(self, node: Any, read: Any) -> None:
        """Follows the read attributes from a node's rows down to the leaves of the plan."""
        jvm = self._jvm
        said, below = jvm.from_seq(node.expressions()), node.inputSet()
        match kind(node):
            case "Project":
                said = self._named(node, node.projectList(), read)
                below = self._attributes(said)
            case "Aggregate":
                said = jvm.from_seq(node.groupingExpressions()) + self._named(node, node.aggregateExpressions(), read)
                below = self._attributes(said)
                self.takes_some |= any(each not in IN_ANY_ORDER for each in self._aggregates(said))
            case "Window" if read.intersect(node.windowOutputSet()).isEmpty():
                said, below = [], read
            case "Window":
                partitions = self._attributes(jvm.from_seq(node.partitionSpec()))
                functions = {kind(each.child().windowFunction()) for each in jvm.from_seq(node.windowExpressions())}
                # Every partition has the same numbers, whatever row gets which number.
                is_number = functions == {"RowNumber"} and read.subsetOf(
                    self._union(node.windowOutputSet(), partitions)
                )
                self.takes_some |= not is_number
                if is_number:
                    said, below = [], partitions
            case "Deduplicate":
                below = self._attributes(said)
                self.takes_some |= not (read.subsetOf(below) or node.inputSet().subsetOf(below))
            case "Filter" | "Join" | "Sort" | "SubqueryAlias" | "View":
                wanted = self._union(read, node.references())
                below = wanted if wanted.subsetOf(below) else below
            case name:
                self.takes_some |= name in TAKES_SOME
        self.expressions += said
        for child in jvm.from_seq(node.children()):
            self.follow(child, child.outputSet().intersect(below))

    def _named(self, node: Any, named: Any, read: Any) -> list[Any]:
        """Returns those of a node's named expressions that are read; there may be very many others."""
        places = getattr(self._jvm.root, "org.apache.spark.sql.catalyst.expressions.package$AttributeSeq")(
            node.output()
        )
        return [named.apply(places.indexOf(each.exprId())) for each in self._jvm.from_seq(read.toSeq())]

    def _attributes(self, expressions: Sequence[Any]) -> Any:
        return self._sets.apply(self._jvm.to_seq(expressions))

    def _union(self, *sets: Any) -> Any:
        return self._sets.fromAttributeSets(self._jvm.to_seq(sets))

    def _aggregates(self, expressions: Sequence[Any]) -> Iterator[str]:
        """Yields the kinds of the aggregate functions in expressions."""
        for each in expressions:
            if kind(each) == "AggregateExpression":
                yield kind(each.aggregateFunction())
            yield from self._aggregates(self._jvm.from_seq(each.children()))


def _nodes(jvm: Jvm, plan: Any) -> Iterator[Any]:
    """Yields the nodes of a plan, without those of its sub-queries."""
    yield plan
    for child in jvm.from_seq(plan.children()):
        yield from _nodes(jvm, child)


def listed(jvm: Jvm, source: DataFrame) -> list[tuple[list[str], int]]:
    """Returns the files of each relation that a source reads as files: their names, and their total size."""
    join = getattr(jvm.root, "org.apache.hadoop.util.StringUtils").arrayToString
    found = []
    for leaf in jvm.from_seq(analysed(source).collectLeaves()):
        if _delta_index(leaf) is None and _is_listing(leaf):
            listing = leaf.relation().location()
            found.append((sorted(str(join(listing.inputFiles())).split(",")), int(listing.sizeInBytes())))
    return found


def _is_frozen(leaf: Any, delta: Any) -> bool:
    """Returns True if a leaf of a source's plan gives the same rows whenever it is read."""
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
    """Returns True for a fixed list of files, made with the relation; a catalog's partitions are listed again at each read."""
    if kind(leaf) != "LogicalRelation" or not _has_method(leaf.relation(), "location"):
        return False
    return kind(leaf.relation().location()) == "InMemoryFileIndex"


def _reads(leaf: Any, path: str) -> bool:
    """Returns True if a relation reads the Delta table at this path, or its change feed."""
    read = (_delta_index(leaf), _change_feed(leaf))
    return any(each is not None and str(each.deltaLog().dataPath()) == path for each in read)


def _delta_index(leaf: Any) -> Any | None:
    """Returns the file index of a Delta table's relation; None for other relations."""
    if kind(leaf) != "LogicalRelation" or not _has_method(leaf.relation(), "location"):
        return None
    index = leaf.relation().location()
    return index if "Tahoe" in kind(index) else None


def _change_feed(leaf: Any) -> Any | None:
    """Returns the change feed of a Delta table that a relation reads; None for other relations."""
    is_one = kind(leaf) == "LogicalRelation" and kind(leaf.relation()) == "DeltaCDFRelation"
    return leaf.relation() if is_one else None


def _has_method(thing: Any, method: str) -> bool:
    """Returns True if a JVM object has a method of this name."""
    return any(found.getName() == method for found in thing.getClass().getMethods())
