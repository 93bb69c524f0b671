"""A stock statement on one table, and the result of Spark's analysis of it.

Its parts are Spark columns whose names are not bound to a table yet, so that they can be evaluated again on a few files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import JVM_ERRORS, Jvm, scala_object
from lakegate.ids import TableLocation
from lakegate.rows.conflict.data_skipping import Among, Both, Compared, Condition, Everything, parse
from lakegate.rows.conflict.read_set import Operation, StatementFacts
from lakegate.rows.plan_analysis import (
    EXPRESSIONS,
    PATTERNS,
    alone,
    analysed,
    kind,
    listed,
    may_become_time,
    obstacles_of,
    obstacles_of_source,
    says_time,
    takes_some,
)

TO_EXPRESSION = "org.apache.spark.sql.classic.ColumnNodeToExpressionConverter$"
ASSIGNS_QUERY = "what it assigns has a sub-query"
KEYS_MAX = 1_000
"""Up to this many keys of a source are looked up in a file's statistics; of more keys, the smallest and the largest."""
BATCH_CONF = "spark.databricks.delta.optimize.batchSize"
WHOLE = str(1 << 62)
"""A batch size in bytes in which everything fits."""
_guard = threading.Lock()
_optimizing: dict[str, tuple[ExitStack, int]] = {}
"""Id of each session that optimizes → the stack that restores its settings, and the number of its threads that optimize."""


@dataclass(frozen=True, kw_only=True)
class Dml:
    """A statement that can be executed on its table, and on other tables with the same definition."""

    session: SparkSession
    table: TableLocation
    operation: Operation
    execute: Callable[[], object]
    """Runs it on its table, and returns stock Delta's result."""
    quick: Callable[[Jvm], Any] | None = None
    """Makes its `QuickStatement` in the JVM, which runs without a Spark job; None: only `execute` runs it."""
    before_stock: Callable[[str], None] | None = None
    """Called with the reason before stock Delta runs it because the driver cannot; may raise an error instead."""
    execute_on: Callable[[str], object] | None = None
    """Runs it on the table at another path; None if the result would differ."""
    alias: str | None = None
    condition: Column | None = None
    """Of DELETE and UPDATE; for a MERGE, of its WHEN NOT MATCHED BY SOURCE; None: all rows."""
    assigned: Mapping[str, Column] = field(default_factory=dict)
    """Of UPDATE."""
    values: Sequence[Column] = ()
    """Of MERGE: values that its clauses assign, also in inserted rows."""
    source: DataFrame | None = None
    """Of MERGE and INSERT."""
    source_anew: Callable[[], DataFrame] | None = None
    """Of SQL text: looks its source up again by the names in the text, as each execution does."""
    on: Column | None = None
    """Of MERGE: the condition of pairs of a row and a source row."""
    has_not_matched_by_source: bool = False
    writes_all_matched: bool = False
    """Of MERGE: there is a WHEN MATCHED without a condition."""
    conditions: Sequence[Column] = ()
    """Of MERGE: the conditions of its WHEN MATCHED."""
    obstacles: tuple[str, ...] = ()
    """Known reasons why another evaluation may give another result."""

    def named(self, frame: DataFrame) -> DataFrame:
        """Returns a frame of the table's rows under the statement's alias."""
        return frame if self.alias is None else frame.alias(self.alias)

    def concerned(self, frame: DataFrame) -> DataFrame:
        """Returns the rows of a frame that match its condition."""
        named = self.named(frame)
        return named if self.condition is None else named.where(self.condition)

    def met(self, frame: DataFrame) -> DataFrame:
        """Returns the rows of a frame that match some row of its source."""
        assert self.source is not None, "only a MERGE has pairs"
        return self.named(frame).join(self.source, self.on, "left_semi")

    @cached_property
    def described_condition(self) -> Condition:
        """The parsed condition, for statistics; for the keys of a MERGE, see `described_keys`."""
        if self.condition is None:
            return Everything()
        try:
            return parse(analysed(self.concerned(self._empty)).condition().toJSON())
        except JVM_ERRORS:
            return Everything()

    @cached_property
    def described_keys(self) -> Condition:
        """The condition that the keys of the source imply for a matched row. One Spark job on the source."""
        assert self.source is not None, "only a MERGE has keys"
        keys = self._keys()
        if not keys:
            return Everything()
        try:
            return self._described(keys)
        except JVM_ERRORS:
            # For example a key that cannot be cast, in a row that another part of the condition excludes.
            return Everything()

    def _described(self, keys: Sequence[tuple[str, str, Column]]) -> Condition:
        assert self.source is not None, "only a MERGE has keys"
        # Without a shuffle; without a job if the plan lists the rows.
        few = self.source.select(*(key for _, _, key in keys)).limit(KEYS_MAX + 1).collect()
        found: Condition = Everything()
        for place, (column, type_, key) in enumerate(keys):
            if len(few) <= KEYS_MAX:
                one: Condition = Among(column, type_, tuple({row[place] for row in few} - {None}))
            else:
                (low, high), *_ = self.source.agg(F.min(key), F.max(key)).collect()
                if low is None:
                    return Among(column, type_, ())
                one = Both(
                    Compared(column, type_, "GreaterThanOrEqual", low), Compared(column, type_, "LessThanOrEqual", high)
                )
            found = one if isinstance(found, Everything) else Both(found, one)
        return found

    def keys(self) -> tuple[str, ...]:
        """Returns the table's columns of `described_keys`; empty unless it is a MERGE."""
        return () if self.on is None else tuple(dict.fromkeys(column for column, _, _ in self._keys()))

    def forget(self) -> None:
        """Clears cached values that depend on the table's columns."""
        for name in ("_empty", "analysed_quick", "described_condition", "described_keys"):
            self.__dict__.pop(name, None)

    def facts(self, *, has_vectors: bool, has_row_ids: bool) -> StatementFacts:
        """Returns the facts that classify it."""
        return StatementFacts(
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
        """The `Jvm` of its session."""
        return Jvm(self.session)

    @cached_property
    def analysed_quick(self) -> Any:
        """The `QuickStatement`; of a MERGE or an INSERT with the rows of its source."""
        assert self.quick is not None, "a statement that only stock Delta runs"
        with self.jvm.active():
            return self.quick(self.jvm)

    @cached_property
    def _empty(self) -> DataFrame:
        """An empty frame with the table's columns."""
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
                found += obstacles_of_source(jvm, self.source, self.table, self._read_of_source())
                if self.source_anew is not None and listed(jvm, self.source) != listed(jvm, self.source_anew()):
                    found.append("files of its source were added or removed while it was executed")
            if self.on is not None and self.source is not None:
                joined = self.named(self._empty).join(self.source, self.on, "inner")
                found += obstacles_of(jvm, alone(jvm, analysed(joined).condition().get()), "its condition")
            if self.condition is not None:
                found += obstacles_of(
                    jvm, alone(jvm, analysed(self.concerned(self._empty)).condition()), "its condition"
                )
            if self.assigned:
                plan = analysed(self.named(self._empty).select(*self.assigned.values()))
                if plan.containsPattern(scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION()):
                    found.append(ASSIGNS_QUERY)
            # Not analysed: a name may belong to the row or to its source row, depending on the clause.
            if _have_sub_query(jvm, self.values):
                found.append(ASSIGNS_QUERY)
        except JVM_ERRORS:
            # For example a column that is bound to one frame: it cannot be evaluated on other rows.
            found.append("it is bound to rows that were read before")
        return found

    def _differs_by_execution(self) -> bool:
        """Returns True if two executions, each on a part of the files, may assign other values than a single one."""
        if self.operation not in (Operation.UPDATE, Operation.MERGE):
            return False
        if self.execute_on is None:
            return True
        try:
            if self.source is None:
                plan = analysed(self.named(self._empty).select(*self.assigned.values()))
            else:
                if takes_some(self.jvm, self.source):
                    return True
                pairs = self.named(self._empty).join(self.source, self.on, "inner")
                plan = analysed(pairs.select(*self.values, *self.conditions))
            # Numbers of monotonically_increasing_id() are unique within an execution, not across executions.
            return not plan.deterministic() or says_time(self.jvm, plan) or may_become_time(self.jvm, plan)
        except JVM_ERRORS:
            return True

    def _read_of_source(self) -> list[Column] | None:
        """Returns the source columns in the condition of a MERGE; None for an INSERT."""
        if self.on is None or self.source is None:
            return None
        joined = analysed(self.named(self._empty).join(self.source, self.on, "inner"))
        theirs = joined.right().outputSet()
        return [
            self._column(each)
            for each in self.jvm.from_seq(joined.condition().get().references().toSeq())
            if theirs.contains(each)
        ]

    def _column(self, expression: Any) -> Column:
        return Column(getattr(self.jvm.root, EXPRESSIONS).column(expression))

    def _keys(self) -> list[tuple[str, str, Column]]:
        """Returns columns of the table that the pairs' condition equates with a source expression: name, type, expression."""
        assert self.source is not None
        found = []
        try:
            joined = self.named(self._empty).join(self.source, self.on, "inner")
            plan = analysed(joined)
            pending, ours, theirs = [plan.condition().get()], plan.left().outputSet(), plan.right().outputSet()
            while pending:
                node = pending.pop()
                if kind(node) == "And":
                    pending += [node.left(), node.right()]
                if kind(node) != "EqualTo":
                    continue
                for one, other in ((node.left(), node.right()), (node.right(), node.left())):
                    if kind(one) != "AttributeReference":
                        continue
                    type_ = str(one.dataType().typeName())
                    is_pair = one.references().subsetOf(ours) and other.references().subsetOf(theirs)
                    if is_pair and type_ in ("byte", "short", "integer", "long"):
                        found.append((str(one.name()), type_, self._column(other)))
        except JVM_ERRORS:
            return []
        return found


def relocation(session: SparkSession, table: TableLocation, execute: Callable[[], object]) -> Dml:
    """Returns an OPTIMIZE that makes one commit. Each of several would conflict with the one before, and the rest would be lost."""

    def in_one_commit() -> object:
        with _in_one_batch(session):
            return execute()

    return Dml(session=session, table=table, operation=Operation.OPTIMIZE, execute=in_one_commit)


def appending(
    session: SparkSession, rows: DataFrame, table: TableLocation, options: Mapping[str, str] | None = None
) -> Dml:
    """Returns an INSERT of these rows; `options` are those of Delta's writer."""
    writer = rows.write.format("delta").mode("append").options(**(options or {}))

    def quick(jvm: Jvm) -> object:
        return jvm.quick.appending(jvm.jsession, table, cast("Any", rows)._jdf.queryExecution().analyzed())

    return Dml(
        session=session,
        table=table,
        operation=Operation.INSERT,
        execute=lambda: writer.save(table),
        quick=None if options else quick,
    )


def location_of(jdt: Any) -> TableLocation:
    """Returns the table's location of a stock `DeltaTable`'s JVM object."""
    return TableLocation(str(jdt.deltaLog().dataPath().toString()))


@contextmanager
def _in_one_batch(session: SparkSession) -> Iterator[None]:
    """Sets the batch size while any thread of the session optimizes: threads share its settings, and each would restore its own."""
    key = str(session._jsparkSession.sessionUUID())
    with _guard:
        if key not in _optimizing:
            restoring = ExitStack()
            restoring.enter_context(confs(session, {BATCH_CONF: WHOLE}))
            _optimizing[key] = (restoring, 0)
        restoring, threads = _optimizing[key]
        _optimizing[key] = (restoring, threads + 1)
    try:
        yield
    finally:
        with _guard:
            restoring, threads = _optimizing.pop(key)
            if threads > 1:
                _optimizing[key] = (restoring, threads - 1)
            else:
                restoring.close()


def _have_sub_query(jvm: Jvm, columns: Sequence[Any]) -> bool:
    """Returns True if one of the columns reads more than its row. Their names need not be resolvable."""
    said, pattern = scala_object(jvm.root, TO_EXPRESSION), scala_object(jvm.root, PATTERNS).PLAN_EXPRESSION()
    return any(said.apply(column._jc.node()).containsPattern(pattern) for column in columns)
