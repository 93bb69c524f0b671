"""Publishes SQL statements: Spark parses the text, and statements that change a Delta table are published."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import delta.tables as stock
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.sql_formatter import SQLStringFormatter

from lakegate.delta.jvm import JVM_ERRORS, Jvm, first_line, scala_object
from lakegate.delta.storage_errors import in_plain_words
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.quoting import quoted
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.conflict_details import telling_conflicts
from lakegate.rows.explain import Explanation, explain
from lakegate.rows.optimize_builder import optimized
from lakegate.rows.plan_analysis import CATALYST, EXPRESSIONS, PATTERNS, kind
from lakegate.rows.quick import of_plan
from lakegate.rows.result import with_result
from lakegate.rows.statement import TO_EXPRESSION, Dml, location_of, relocation
from lakegate.rows.thread_scope import run

DATASET = "org.apache.spark.sql.classic.Dataset"
MODES = "org.apache.spark.sql.execution.CommandExecutionMode$"
OPERATIONS = {
    "DeleteFromTable": Operation.DELETE,
    "UpdateTable": Operation.UPDATE,
    "MergeIntoTable": Operation.MERGE,
    "InsertIntoStatement": Operation.INSERT,
    "OverwriteByExpression": Operation.OVERWRITE,
    "OptimizeTableCommand": Operation.OPTIMIZE,
    "DeltaReorgTable": Operation.OPTIMIZE,
}
"""Nodes of Spark's parsed plans."""
ASSIGNING = ("UpdateAction", "InsertAction")
"""Clauses of a MERGE that assign values."""
IN_THE_TEXT = frozenset({"UnresolvedInlineTable", "LocalRelation", "OneRowRelation"})
"""Leaves of a parsed plan that name no table."""
VIEW_OF_FRAME = "_pyspark_"
"""Prefix of the names that PySpark gives to data frames in SQL text."""
PURGE = "PURGE"
"""The mode of REORG that only moves rows."""
PADS = "its table has a CHAR column, whose values Spark pads where they are compared in SQL, and only there"
CHAR = re.compile(r'__CHAR_VARCHAR_TYPE_STRING":"[^"]*\bchar\(')
NO_ROW_OF_ITS_OWN = (
    "its text has parameters that are not literals, a WITH clause, or a data frame that no longer exists by then"
)


@in_plain_words()
def sql(spark: SparkSession, text: str, args: Any = None, **kwargs: Any) -> DataFrame:
    """Runs `spark.sql`; DELETE, UPDATE, MERGE, INSERT, OPTIMIZE and REORG … APPLY (PURGE) are rebased as with `DeltaTable`.

    Args:
        spark: Any session of `lakegate.session`.
        text: One statement; statements that change no Delta table are left to Spark.
        args: As of `spark.sql`.
        kwargs: As of `spark.sql`.

    Returns:
        The stock result. If a statement was published, its attribute `lakegate` is a `Result`.
    """
    dml = statement(spark, text, args, **kwargs)
    if dml is None:
        with telling_conflicts():
            return spark.sql(text, args, **kwargs)
    if dml.operation is Operation.OPTIMIZE:
        return optimized(spark, dml.table, dml.execute)
    result = run(dml)
    frame: DataFrame | None = result.returned
    if frame is None:
        match dml.operation:
            case Operation.DELETE | Operation.UPDATE:
                frame = result.counted(spark).select("num_affected_rows")
            case Operation.INSERT | Operation.OVERWRITE:
                frame = dml.jvm.frame(dml.jvm.jsession.emptyDataFrame())
            case _:
                frame = result.counted(spark)
    return with_result(frame, result)


def explain_sql(spark: SparkSession, text: str) -> Explanation:
    """Explains what a statement depends on, and what happens to it when another commit comes first; executes nothing.

    Raises:
        InvalidRequest: The statement changes no Delta table, or cannot be parsed.
    """
    try:
        dml = statement(spark, text)
    except JVM_ERRORS as error:
        raise InvalidRequest("the statement cannot be parsed; nothing was done", reason=first_line(error)) from error
    if dml is None:
        raise InvalidRequest(
            "only DELETE, UPDATE, MERGE, INSERT, OPTIMIZE and REORG … APPLY (PURGE) of a Delta table are explained; nothing "
            "was done",
            advice="Name the table as in SQL, e.g. delta.`/data/t`",
        )
    return explain(dml)


def statement(spark: SparkSession, text: str, args: Any = None, **kwargs: Any) -> Dml | None:
    """Parses a statement that changes a Delta table; None if it is of a kind that is not published."""
    jvm = Jvm(spark)
    formatter = SQLStringFormatter(spark)
    try:
        plan, is_whole = _parsed(jvm, formatter.format(text, **kwargs) if kwargs else text, args)

        def execute() -> object:
            # Delta's parser does not put values into the text, so the plan with them is run.
            return _Parts(jvm, spark, plan).frame(plan) if args and is_whole else spark.sql(text, args, **kwargs)

        # Data frames in the text have names until the formatter is cleared.
        return _said(jvm, spark, plan, execute, is_whole=is_whole, kwargs=kwargs)
    finally:
        formatter.clear()


def _parsed(jvm: Jvm, text: str, args: Any) -> tuple[Any, bool]:
    """Parses a text; returns the plan, and whether the values of all parameters are in it."""
    with jvm.active():
        plan = jvm.jsession.sessionState().sqlParser().parsePlan(text)
        bound = _bound(jvm, plan, args) if args else plan
    return (plan, False) if bound is None else (bound, True)


def _bound(jvm: Jvm, plan: Any, args: Any) -> Any:
    """Puts the values of parameters into a plan; None if one is not a literal. Spark refuses an unknown parameter later."""
    names = list(args) if isinstance(args, Mapping) else None
    values = args if names is None else args.values()
    to_expression, analysis = scala_object(jvm.root, TO_EXPRESSION), f"{CATALYST}.analysis"
    try:
        literals = [to_expression.apply(cast("Any", F.lit(value))._jc.node()) for value in values]
        if any(kind(literal) != "Literal" for literal in literals):
            return None
        if names is None:
            query = getattr(jvm.root, f"{analysis}.PosParameterizedQuery")(plan, jvm.to_seq(literals))
        else:
            query = getattr(jvm.root, f"{analysis}.NameParameterizedQuery")(
                plan, jvm.to_seq(names), jvm.to_seq(literals)
            )
        return scala_object(jvm.root, f"{analysis}.BindParameters$").apply(query)
    except (TypeError, *JVM_ERRORS):
        return None


def _said(
    jvm: Jvm,
    spark: SparkSession,
    plan: Any,
    execute: Callable[[], object],
    *,
    is_whole: bool,
    kwargs: Mapping[str, Any],
) -> Dml | None:
    """Makes a `Dml` of a parsed plan; None if it is of a kind that is not published.

    Args:
        jvm: Of the session.
        spark: The session.
        plan: As parsed.
        execute: Runs the text.
        is_whole: The plan is complete; False if values of parameters are not in it.
        kwargs: Values that were inserted into the text.
    """
    said = plan.child() if kind(plan) == "UnresolvedWith" else plan
    operation = OPERATIONS.get(kind(said))
    if operation is None or (kind(said) == "DeltaReorgTable" and str(said.reorgTableSpec().reorgTableMode()) != PURGE):
        return None
    target = _target(jvm, spark, said, operation)
    if target is None:
        return None
    common: dict[str, Any] = {"session": spark, "table": target.location, "execute": execute, "alias": target.alias}
    if operation is Operation.INSERT and not said.overwrite() and is_whole:
        # Analysed at once, with all names in its text; it is not analysed later.
        source = None if _names_nothing(jvm, said.query()) else _Parts(jvm, spark, plan).inserted()
        quick = None if _have_frames(kwargs) else lambda jvm: of_plan(jvm, plan)
        return Dml(operation=operation, source=source, quick=quick, **common)
        # Other statements are tested on single rows later, without a WITH clause or a data frame in a sub-query.
    has_frames = _have_frames(kwargs)
    if said is not plan or (
        has_frames and not (operation is Operation.MERGE and _is_of_frames(jvm, plan.sourceTable()))
    ):
        is_whole = False
    if not is_whole:
        return Dml(operation=operation, obstacles=(NO_ROW_OF_ITS_OWN,), **common)
    if operation is not Operation.OPTIMIZE and _has_char(jvm, target.location):
        return Dml(operation=operation, obstacles=(PADS,), **common)
    parts = _Parts(jvm, spark, plan)

    def own_plan(jvm: Jvm) -> object:
        return of_plan(jvm, plan)

    match operation:
        case Operation.DELETE:
            condition = parts.column(plan.condition())
            return Dml(
                operation=operation,
                condition=condition,
                quick=own_plan,
                execute_on=lambda path: parts.run_on(target, path),
                **common,
            )
        case Operation.UPDATE:
            where = parts.optional(plan.condition())
            assignments = jvm.from_seq(plan.assignments())
            # The value of DEFAULT depends on the table, not on a row.
            of_rows = [each for each in assignments if not _is_default(jvm, each.value())]
            assigned = {parts.name(each.key()): parts.column(each.value()) for each in of_rows}
            return Dml(
                operation=operation,
                condition=where,
                assigned=assigned,
                quick=own_plan,
                execute_on=None if len(of_rows) < len(assignments) else lambda path: parts.run_on(target, path),
                **common,
            )
        case Operation.MERGE:
            by_source = [parts.optional(each.condition()) for each in jvm.from_seq(plan.notMatchedBySourceActions())]
            source, on = parts.frame(plan.sourceTable()), parts.column(plan.mergeCondition())
            matched = jvm.from_seq(plan.matchedActions())

            def of_frames(jvm: Jvm) -> object:
                children = [plan.targetTable(), cast("Any", source)._jdf.queryExecution().analyzed()]
                return of_plan(jvm, plan.withNewChildren(jvm.to_seq(children)))

            return Dml(
                operation=operation,
                quick=of_frames if has_frames else own_plan,
                execute_on=(lambda path: parts.run_on(target, path, source)) if parts.is_matched_only() else None,
                condition=_any_of(by_source),
                values=parts.assigned_by_merge(),
                source=source,
                # A data frame in the text is the same at each execution.
                source_anew=None if has_frames else lambda: parts.frame(plan.sourceTable()),
                on=on,
                has_not_matched_by_source=bool(by_source),
                writes_all_matched=any(not each.condition().isDefined() for each in matched),
                conditions=[parts.column(each.condition().get()) for each in matched if each.condition().isDefined()],
                **common,
            )
        case Operation.INSERT:
            return Dml(operation=Operation.OVERWRITE, **common)
        case Operation.OPTIMIZE:
            return relocation(spark, target.location, execute)
        case _:
            return Dml(operation=operation, **common)


@dataclass(frozen=True, slots=True)
class _Target:
    location: TableLocation
    alias: str | None


@dataclass(frozen=True, slots=True)
class _Parts:
    """Converts parts of a parsed plan to PySpark's types."""

    jvm: Jvm
    spark: SparkSession
    plan: Any

    def column(self, expression: Any) -> Column:
        return Column(getattr(self.jvm.root, EXPRESSIONS).column(expression))

    def optional(self, expression: Any) -> Column | None:
        return self.column(expression.get()) if expression.isDefined() else None

    def assigned_by_merge(self) -> list[Column]:
        """Returns the values that the clauses of a MERGE assign; a clause with a star assigns none explicitly."""
        plan = self.plan
        clauses = (plan.matchedActions(), plan.notMatchedActions(), plan.notMatchedBySourceActions())
        actions = [action for each in clauses for action in self.jvm.from_seq(each)]
        said = [
            each for action in actions if kind(action) in ASSIGNING for each in self.jvm.from_seq(action.assignments())
        ]
        return [self.column(each.value()) for each in said]

    def is_matched_only(self) -> bool:
        """Returns True if a MERGE has only WHEN MATCHED clauses, and adds no columns."""
        plan = self.plan
        return not (
            plan.withSchemaEvolution()
            or plan.notMatchedActions().nonEmpty()
            or plan.notMatchedBySourceActions().nonEmpty()
        )

    def run_on(self, target: _Target, path: str, source: DataFrame | None = None) -> DataFrame:
        """Executes the same SQL on the table at another path.

        It runs as SQL, because `DeltaTable` cannot change a table with a CHAR column: it pads the values that it reads.

        Args:
            target: The table as the text names it.
            path: Path of the other table.
            source: The source of a MERGE: the names in the text may refer to something else by now.
        """
        words = [f"DELETE FROM delta.{quoted(path)}"] + ([] if target.alias is None else [f"AS {quoted(target.alias)}"])
        with self.jvm.active():
            table = self.jvm.jsession.sessionState().sqlParser().parsePlan(" ".join(words)).table()
            others = [] if source is None else [cast("Any", source)._jdf.queryExecution().analyzed()]
            plan = self.plan.withNewChildren(self.jvm.to_seq([table, *others]))
        return self.frame(plan)

    def inserted(self) -> DataFrame:
        """Returns the rows of an INSERT, analysed with its table, which defines the value of DEFAULT."""
        state = self.jvm.jsession.sessionState()
        with self.jvm.active():
            executed = state.executePlan(self.plan, scala_object(self.jvm.root, MODES).SKIP())
            return self.frame(executed.analyzed().query())

    def name(self, key: Any) -> str:
        return ".".join(quoted(part) for part in self.jvm.from_seq(key.nameParts()))

    def frame(self, plan: Any) -> DataFrame:
        with self.jvm.active():
            return self.jvm.frame(getattr(self.jvm.root, DATASET).ofRows(self.jvm.jsession, plan))


def _has_char(jvm: Jvm, table: TableLocation) -> bool:
    """Returns True if a table has a CHAR column, at the top level or within another type."""
    return CHAR.search(str(jvm.delta_log(table).unsafeVolatileSnapshot().schema().json())) is not None


def _target(jvm: Jvm, spark: SparkSession, plan: Any, operation: Operation) -> _Target | None:
    """Returns the table that a statement changes; None if it is not a Delta table."""
    match operation:
        case Operation.MERGE:
            node = plan.targetTable()
        case Operation.OPTIMIZE:
            node = plan.child()
        case _:
            node = plan.table()
    alias = None
    if kind(node) == "SubqueryAlias":
        alias, node = str(node.identifier().name()), node.child()
    if kind(node) == "UnresolvedPathBasedDeltaTable":
        parts: Sequence[str] = ("delta", node.path())
    elif kind(node) in ("UnresolvedRelation", "UnresolvedTable"):
        parts = jvm.from_seq(node.multipartIdentifier())
    else:
        return None
    try:
        if len(parts) == 2 and parts[0].lower() == "delta":
            # Not with `forPath`, which analyses a query of the table.
            log = jvm.delta_log(parts[1])
            is_there = jvm.snapshot(log).version() >= 0
            return _Target(TableLocation(str(log.dataPath())), alias) if is_there else None
        named = _as_spark_finds_it(jvm, parts)
        table = stock.DeltaTable.forName(spark, ".".join(quoted(part) for part in named))
    except JVM_ERRORS:
        return None
    return _Target(location_of(table._jdt), alias or parts[-1])


def _as_spark_finds_it(jvm: Jvm, parts: Sequence[str]) -> Sequence[str]:
    """Adds the current catalog to a name of one part, unless it is the session catalog: there Delta looks such a name up."""
    state = jvm.jsession.sessionState()
    manager = state.catalogManager()
    catalog = str(manager.currentCatalog().name())
    if len(parts) > 1 or catalog == "spark_catalog" or state.catalog().getTempView(parts[0]).isDefined():
        return parts
    return [catalog, *manager.currentNamespace(), *parts]


def _names_nothing(jvm: Jvm, query: Any) -> bool:
    """Returns True if the rows of an INSERT are in its text."""
    patterns = scala_object(jvm.root, PATTERNS)
    # A SQL function may have a query in its body.
    may_read = (patterns.PLAN_EXPRESSION(), patterns.UNRESOLVED_FUNCTION(), patterns.UNRESOLVED_IDENTIFIER())
    leaves = {kind(leaf) for leaf in jvm.from_seq(query.collectLeaves())}
    return leaves <= IN_THE_TEXT and not any(query.containsPattern(each) for each in may_read)


def _is_default(jvm: Jvm, value: Any) -> bool:
    """Returns True if an assigned value, as parsed, is the column's default."""
    return kind(value) == "UnresolvedAttribute" and str(value.name()).upper() == "DEFAULT"


def _is_of_frames(jvm: Jvm, source: Any) -> bool:
    """Returns True if a MERGE's source, as parsed, reads only data frames in the text and nothing that has to be looked up."""
    return all(
        kind(leaf) in IN_THE_TEXT
        or (kind(leaf) == "UnresolvedRelation" and str(leaf.multipartIdentifier().head()).startswith(VIEW_OF_FRAME))
        for leaf in jvm.from_seq(source.collectLeaves())
    )


def _have_frames(kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(each, DataFrame) for each in kwargs.values())


def _any_of(conditions: Sequence[Column | None]) -> Column | None:
    """Returns the disjunction of conditions; None (true for all rows) if one of them is None."""
    found: Column | None = None
    for condition in conditions:
        if condition is None:
            return None
        found = condition if found is None else found | condition
    return found
