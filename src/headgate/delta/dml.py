"""A stock statement on one table, and what Spark's analysis says of it.

Its parts are Spark columns whose names are not bound to a table yet, so that they can be asked again of a few files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.core.ids import TableLocation
from headgate.core.rows.statement import Facts, Operation
from headgate.core.rows.statistics import Among, Both, Compared, Condition, Everything, parse
from headgate.delta.jvm import JVM_ERRORS, Jvm, scala_object
from headgate.delta.statements import confs

PATTERNS = "org.apache.spark.sql.catalyst.trees.TreePattern$"
TO_EXPRESSION = "org.apache.spark.sql.classic.ColumnNodeToExpressionConverter$"
ASSIGNS_QUERY = "what it assigns has a sub-query"
KEYS_MAX = 1_000
"""So many keys of a source are looked up in a file's statistics; of more, the smallest and the largest."""
BATCH_CONF = "spark.databricks.delta.optimize.batchSize"
TAKES_SOME = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail", "Sample"})
"""Nodes of plans that Spark calls deterministic, though which rows they give depends on the order in which rows come."""
WHOLE = str(1 << 62)
"""Bytes of a batch that everything fits in."""


@dataclass(frozen=True, kw_only=True)
class Dml:
    """A statement, as it can be executed on its table and on others of the same definition."""

    session: SparkSession
    table: TableLocation
    operation: Operation
    execute: Callable[[], object]
    """Runs it on its table, and returns what stock Delta does."""
    execute_on: Callable[[str], object] | None = None
    """Runs it on the table at another path; None where that would not be the same."""
    alias: str | None = None
    condition: Column | None = None
    """Of DELETE and UPDATE; of a MERGE, of its WHEN NOT MATCHED BY SOURCE; None: all rows."""
    assigned: Mapping[str, Column] = field(default_factory=dict)
    """Of UPDATE."""
    values: Sequence[Column] = ()
    """Of MERGE: what its clauses assign, and in rows that they insert."""
    source: DataFrame | None = None
    """Of MERGE and INSERT."""
    source_anew: Callable[[], DataFrame] | None = None
    """Of SQL text: its source as the text says now, which each execution looks up for itself."""
    on: Column | None = None
    """Of MERGE: for which pairs of a row and a row of the source it holds."""
    has_not_matched_by_source: bool = False
    writes_all_matched: bool = False
    """Of MERGE: there is a WHEN MATCHED without a condition."""
    obstacles: tuple[str, ...] = ()
    """What is known already to stand against asking it again."""

    def named(self, frame: DataFrame) -> DataFrame:
        """Rows of the table under the name that the statement gives it."""
        return frame if self.alias is None else frame.alias(self.alias)

    def concerned(self, frame: DataFrame) -> DataFrame:
        """Those of a frame's rows that its condition holds for."""
        named = self.named(frame)
        return named if self.condition is None else named.where(self.condition)

    def met(self, frame: DataFrame) -> DataFrame:
        """Those of a frame's rows that some row of its source belongs to."""
        assert self.source is not None, "only a MERGE has pairs"
        return self.named(frame).join(self.source, self.on, "left_semi")

    @cached_property
    def described_condition(self) -> Condition:
        """For statistics; of MERGE, that of its keys is `described_keys`."""
        if self.condition is None:
            return Everything()
        try:
            return parse(_analysed(self.concerned(self._empty)).condition().toJSON())
        except JVM_ERRORS:
            return Everything()

    @cached_property
    def described_keys(self) -> Condition:
        """What the keys of the source say of a row that one of them belongs to. One Spark job on the source."""
        assert self.source is not None, "only a MERGE has keys"
        keys = self._keys()
        if not keys:
            return Everything()
        # Without a shuffle; of rows that the plan lists, without a job.
        few = self.source.select(*(key for _, _, key in keys)).limit(KEYS_MAX + 1).collect()
        found: Condition = Everything()
        for place, (column, kind, key) in enumerate(keys):
            if len(few) <= KEYS_MAX:
                one: Condition = Among(column, kind, tuple({row[place] for row in few} - {None}))
            else:
                (low, high), *_ = self.source.agg(F.min(key), F.max(key)).collect()
                if low is None:
                    return Among(column, kind, ())
                one = Both(
                    Compared(column, kind, "GreaterThanOrEqual", low), Compared(column, kind, "LessThanOrEqual", high)
                )
            found = one if isinstance(found, Everything) else Both(found, one)
        return found

    def forget(self) -> None:
        """Forget what was found out of the table's columns."""
        for name in ("_empty", "described_condition", "described_keys"):
            self.__dict__.pop(name, None)

    def facts(self, *, has_vectors: bool, has_row_ids: bool) -> Facts:
        """What has to be known to classify it."""
        return Facts(
            operation=self.operation,
            has_vectors=has_vectors,
            has_row_ids=has_row_ids,
            obstacles=self.obstacles or tuple(self._obstacles()),
            has_condition=self.has_not_matched_by_source,
            writes_all_matched=self.writes_all_matched,
            differs_by_execution=self._differs_by_execution(),
        )

    @cached_property
    def jvm(self) -> Jvm:
        """Of its session."""
        return Jvm(self.session)

    @cached_property
    def _empty(self) -> DataFrame:
        """The table's columns without rows."""
        jvm = self.jvm
        schema = jvm.delta_log(self.table).unsafeVolatileSnapshot().schema()
        return jvm.frame(jvm.jsession.createDataFrame(jvm.root.java.util.ArrayList(), schema))

    def _obstacles(self) -> list[str]:
        if self.operation is Operation.OPTIMIZE:
            return []
        jvm = self.jvm
        found: list[str] = []
        try:
            if self.source is not None:
                found += _obstacles_of_source(jvm, self.source, self.table, self.operation)
                if self.source_anew is not None and _listed(jvm, self.source) != _listed(jvm, self.source_anew()):
                    found.append("files of its source came or went while it was executed")
            if self.on is not None and self.source is not None:
                joined = self.named(self._empty).join(self.source, self.on, "inner")
                found += _obstacles_of_plan(jvm, _analysed(joined).condition().get(), "its condition")
            if self.condition is not None:
                found += _obstacles_of_plan(jvm, _analysed(self.concerned(self._empty)).condition(), "its condition")
            if self.assigned:
                plan = _analysed(self.named(self._empty).select(*self.assigned.values()))
                if plan.containsPattern(scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION()):
                    found.append(ASSIGNS_QUERY)
            # Not analysed: a name may be one of the row's and one of its source's, which depends on the clause.
            if _have_sub_query(jvm, self.values):
                found.append(ASSIGNS_QUERY)
        except JVM_ERRORS:
            # As where a column is bound to one frame: it cannot be asked of other rows.
            found.append("it is bound to rows that were read before")
        return found

    def _differs_by_execution(self) -> bool:
        """Whether one execution on some files and another one on the rest may assign what a single one would not."""
        if not self.assigned or self.execute_on is None:
            return self.operation is Operation.UPDATE and self.execute_on is None
        try:
            plan = _analysed(self.named(self._empty).select(*self.assigned.values()))
            # Numbers of monotonically_increasing_id() are different ones within an execution, not between two.
            is_deterministic = bool(plan.deterministic())
            return not is_deterministic or bool(
                plan.containsPattern(scala_object(self.jvm.root, PATTERNS).CURRENT_LIKE())
            )
        except JVM_ERRORS:
            return True

    def _keys(self) -> list[tuple[str, str, Column]]:
        """Columns of the table that the pairs' condition says are equal to something of the source: name, type, what."""
        assert self.source is not None
        jvm = self.jvm
        expressions = getattr(jvm.root, "org.apache.spark.sql.classic.ExpressionUtils")
        found = []
        try:
            joined = self.named(self._empty).join(self.source, self.on, "inner")
            plan = _analysed(joined)
            pending, ours, theirs = [plan.condition().get()], plan.left().outputSet(), plan.right().outputSet()
            while pending:
                node = pending.pop()
                kind = _kind(node)
                if kind == "And":
                    pending += [node.left(), node.right()]
                if kind != "EqualTo":
                    continue
                for one, other in ((node.left(), node.right()), (node.right(), node.left())):
                    if _kind(one) != "AttributeReference":
                        continue
                    type_ = str(one.dataType().typeName())
                    is_pair = one.references().subsetOf(ours) and other.references().subsetOf(theirs)
                    if is_pair and type_ in ("byte", "short", "integer", "long"):
                        found.append((str(one.name()), type_, Column(expressions.column(other))))
        except JVM_ERRORS:
            return []
        return found


def relocation(session: SparkSession, table: TableLocation, execute: Callable[[], object]) -> Dml:
    """An OPTIMIZE that makes one commit. Each of several would lose to the one before it, and those after it would not be made."""

    def in_one_commit() -> object:
        with confs(session, {BATCH_CONF: WHOLE}):
            return execute()

    return Dml(session=session, table=table, operation=Operation.OPTIMIZE, execute=in_one_commit)


def _obstacles_of_plan(jvm: Jvm, plan: Any, what: str) -> list[str]:
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


def _obstacles_of_source(jvm: Jvm, source: DataFrame, table: TableLocation, operation: Operation) -> list[str]:
    """Why the source may say something else later; of an INSERT, only what it reads of its own table."""
    plan = _analysed(source)
    is_insert = operation is Operation.INSERT
    found = [] if is_insert else _obstacles_of_plan(jvm, plan, "its source")
    if not is_insert and any(_kind(node) in TAKES_SOME for node in _nodes(jvm, plan)):
        found.append("its source takes some rows of many, which may be others later")
    if is_insert and plan.containsPattern(scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION()):
        found.append("its source has a sub-query")
    own = str(jvm.delta_log(table).dataPath())
    for leaf in jvm.from_seq(plan.collectLeaves()):
        delta = _delta_index(leaf)
        feed = _change_feed(leaf)
        if any(read is not None and str(read.deltaLog().dataPath()) == own for read in (delta, feed)):
            found.append("its source reads the table itself")
        elif not _is_frozen(leaf, delta) and not (is_insert and _kind(leaf) != "DataSourceV2Relation"):
            found.append("its source may change: read a Delta table as of a version, or write the source down first")
    return found


def _have_sub_query(jvm: Jvm, columns: Sequence[Any]) -> bool:
    """Whether one of them reads more than its row. Their names need not be known."""
    said, pattern = scala_object(jvm.root, TO_EXPRESSION), scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION()
    return any(said.apply(column._jc.node()).containsPattern(pattern) for column in columns)


def _nodes(jvm: Jvm, plan: Any) -> Iterator[Any]:
    """Of a plan, without those of its sub-queries."""
    yield plan
    for child in jvm.from_seq(plan.children()):
        yield from _nodes(jvm, child)


def _listed(jvm: Jvm, source: DataFrame) -> list[tuple[list[str], int]]:
    """The files of each relation that a source reads as files: their names, and how large they are in all."""
    join = getattr(jvm.root, "org.apache.hadoop.util.StringUtils").arrayToString
    found = []
    for leaf in jvm.from_seq(_analysed(source).collectLeaves()):
        if _delta_index(leaf) is None and _is_listing(leaf):
            listing = leaf.relation().location()
            found.append((sorted(str(join(listing.inputFiles())).split(",")), int(listing.sizeInBytes())))
    return found


def _is_frozen(leaf: Any, delta: Any) -> bool:
    """Whether what a source reads from is the same whenever it is read."""
    if delta is not None:
        return bool(delta.isTimeTravelQuery())
    match _kind(leaf):
        case "LocalRelation" | "Range" | "OneRowRelation":
            return True
        case "LogicalRDD":
            return str(leaf.rdd().outputDeterministicLevel()) != "INDETERMINATE"
        case "LogicalRelation":
            return _is_listing(leaf)
    return False


def _is_listing(leaf: Any) -> bool:
    """Whether it is files, listed when it was made; a catalog's partitions are listed anew."""
    if _kind(leaf) != "LogicalRelation" or not _has_method(leaf.relation(), "location"):
        return False
    return _kind(leaf.relation().location()) == "InMemoryFileIndex"


def _delta_index(leaf: Any) -> Any | None:
    """What a relation of a Delta table reads its files from; None for others."""
    if _kind(leaf) != "LogicalRelation" or not _has_method(leaf.relation(), "location"):
        return None
    index = leaf.relation().location()
    return index if "Tahoe" in _kind(index) else None


def _change_feed(leaf: Any) -> Any | None:
    """The change feed of a Delta table that a relation reads; None for others."""
    is_one = _kind(leaf) == "LogicalRelation" and _kind(leaf.relation()) == "DeltaCDFRelation"
    return leaf.relation() if is_one else None


def _kind(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _has_method(thing: Any, method: str) -> bool:
    """Whether a JVM object has a method of this name."""
    return any(found.getName() == method for found in thing.getClass().getMethods())


def _analysed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()
