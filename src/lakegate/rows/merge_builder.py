"""The builder of a MERGE that is rebased on concurrent commits instead of failing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import delta.tables as stock
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakegate.ids import TableLocation
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.explain import Explanation, explain
from lakegate.rows.quick import of_plan
from lakegate.rows.result import with_result
from lakegate.rows.statement import Dml
from lakegate.rows.thread_scope import run

OptionalCondition = str | Column | None
OptionalAssignments = Mapping[str, str | Column] | None
Clause = Callable[[Any], Any]
"""Adds a clause of a MERGE to a stock builder, and returns the builder."""


def opened_at(session: SparkSession, path: str, alias: str | None) -> stock.DeltaTable:
    """Opens the stock class at a path, under an alias."""
    table = stock.DeltaTable.forPath(session, path)
    return table if alias is None else table.alias(alias)


@dataclass(frozen=True)
class Clauses:
    """The parts of a MERGE that its rebase needs."""

    session: SparkSession
    table: TableLocation
    alias: str | None
    source: DataFrame
    on: Column | None
    by_source: Sequence[Column | None] = ()
    """Conditions of its WHEN NOT MATCHED BY SOURCE."""
    values: Sequence[str | Column] = ()
    """Assigned values."""
    writes_all_matched: bool = False
    conditions: Sequence[Column] = ()
    """Conditions of its WHEN MATCHED."""
    matched: Sequence[Clause] | None = ()
    """Each WHEN MATCHED, to be repeated on another table; None if there are other clauses."""

    def dml(self, execute: Callable[[], object], builder: Any = None) -> Dml:
        """Makes the statement. `builder`: the stock builder in the JVM, of which a quick execution takes the plan."""
        conditions = [column for column in self.by_source if column is not None]
        every = None
        if self.by_source and len(conditions) == len(self.by_source):
            every = conditions[0]
            for other in conditions[1:]:
                every = every | other
        return Dml(
            session=self.session,
            table=self.table,
            operation=Operation.MERGE,
            execute=execute,
            quick=None if builder is None else lambda jvm: of_plan(jvm, builder),
            execute_on=None if self.matched is None else self._execute_on,
            alias=self.alias,
            condition=every,
            values=[required(value) for value in self.values],
            source=self.source,
            on=self.on,
            has_not_matched_by_source=bool(self.by_source),
            writes_all_matched=self.writes_all_matched,
            conditions=self.conditions,
        )

    def _execute_on(self, path: str) -> object:
        assert self.on is not None, "a MERGE has a condition"
        assert self.matched is not None, "one with other clauses is not divisible"
        return merged(opened_at(self.session, path, self.alias), self.source, self.on, self.matched)


class DeltaMergeBuilder(stock.DeltaMergeBuilder):
    """Builds a MERGE. Source: `delta.tables.DeltaMergeBuilder`."""

    def __init__(self, spark: SparkSession, jbuilder: Any, clauses: Clauses) -> None:
        super().__init__(spark, jbuilder)
        self._clauses = clauses

    def whenMatchedUpdate(
        self, condition: OptionalCondition = None, set: OptionalAssignments = None
    ) -> DeltaMergeBuilder:
        """Adds WHEN MATCHED THEN UPDATE.

        Args:
            condition: Of the pair of rows, as SQL text or a Column; None: every pair.
            set: Column name → value over both rows, as SQL text or a Column.

        Returns:
            The builder with the clause.

        Example:
            ```python
            .whenMatchedUpdate("s.seq > t.seq", {"name": "s.name"})
            ```

        Source: `delta.tables.DeltaMergeBuilder.whenMatchedUpdate`.
        """
        # The clause may be repeated later: the caller may change its dictionary meanwhile.
        values = dict(set) if isinstance(set, dict) else set
        return self._matched(lambda merge: merge.whenMatchedUpdate(condition, values), super(), condition, values)

    def whenMatchedUpdateAll(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Adds WHEN MATCHED THEN UPDATE SET *: every column from the source.

        Args:
            condition: Of the pair of rows, as SQL text or a Column; None: every pair.

        Returns:
            The builder with the clause.

        Source: `delta.tables.DeltaMergeBuilder.whenMatchedUpdateAll`.
        """
        return self._matched(lambda merge: merge.whenMatchedUpdateAll(condition), super(), condition)

    def whenMatchedDelete(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Adds WHEN MATCHED THEN DELETE.

        Args:
            condition: Of the pair of rows, as SQL text or a Column; None: every pair.

        Returns:
            The builder with the clause.

        Example:
            ```python
            .whenMatchedDelete("s.op = 'd'")
            ```

        Source: `delta.tables.DeltaMergeBuilder.whenMatchedDelete`.
        """
        return self._matched(lambda merge: merge.whenMatchedDelete(condition), super(), condition)

    def whenNotMatchedInsert(
        self, condition: OptionalCondition = None, values: OptionalAssignments = None
    ) -> DeltaMergeBuilder:
        """Adds WHEN NOT MATCHED THEN INSERT.

        Args:
            condition: Of the row of the source, as SQL text or a Column; None: every row.
            values: Column name → value over the row of the source, as SQL text or a Column.

        Returns:
            The builder with the clause.

        Example:
            ```python
            .whenNotMatchedInsert(values={"id": "s.id", "name": "s.name"})
            ```

        Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedInsert`.
        """
        grown: Any = super()
        return self._with(grown.whenNotMatchedInsert(condition, values), values=values)

    def whenNotMatchedInsertAll(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Adds WHEN NOT MATCHED THEN INSERT *: every column from the source.

        Args:
            condition: Of the row of the source, as SQL text or a Column; None: every row.

        Returns:
            The builder with the clause.

        Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedInsertAll`.
        """
        return self._with(super().whenNotMatchedInsertAll(condition))

    def whenNotMatchedBySourceUpdate(
        self, condition: OptionalCondition = None, set: OptionalAssignments = None
    ) -> DeltaMergeBuilder:
        """Adds WHEN NOT MATCHED BY SOURCE THEN UPDATE.

        Args:
            condition: Of the row of the table, as SQL text or a Column; None: every row.
            set: Column name → value over the row of the table, as SQL text or a Column.

        Returns:
            The builder with the clause.

        Example:
            ```python
            .whenNotMatchedBySourceUpdate(set={"is_active": "false"})
            ```

        Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedBySourceUpdate`.
        """
        grown: Any = super()
        return self._with(grown.whenNotMatchedBySourceUpdate(condition, set), condition, values=set, is_by_source=True)

    def whenNotMatchedBySourceDelete(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Adds WHEN NOT MATCHED BY SOURCE THEN DELETE.

        Args:
            condition: Of the row of the table, as SQL text or a Column; None: every row.

        Returns:
            The builder with the clause.

        Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedBySourceDelete`.
        """
        return self._with(super().whenNotMatchedBySourceDelete(condition), condition, is_by_source=True)

    def withSchemaEvolution(self) -> DeltaMergeBuilder:
        """Lets the MERGE add columns of the source to the table.

        Returns:
            The builder.

        Source: `delta.tables.DeltaMergeBuilder.withSchemaEvolution`.
        """
        return self._with(super().withSchemaEvolution())

    def execute(self) -> DataFrame:
        """Executes the MERGE.

        Returns:
            The stock metrics: one row. Its attribute `lakegate` is a `Result`, which says how the MERGE was committed.

        Source: `delta.tables.DeltaMergeBuilder.execute`.
        """
        result = run(self._dml())
        return with_result(result.returned if result.returned is not None else result.counted(self._spark), result)

    def explain(self) -> Explanation:
        """Explains on what the MERGE depends, and what a concurrent commit means for it; executes nothing."""
        return explain(self._dml())

    def _dml(self) -> Dml:
        return self._clauses.dml(super().execute, self._jbuilder)

    def _matched(
        self,
        say: Clause,
        stocks: Any,
        condition: OptionalCondition,
        values: OptionalAssignments = None,
    ) -> DeltaMergeBuilder:
        grown, before = say(stocks), self._clauses  # stock Delta checks the clause first
        clauses = replace(
            before,
            values=(*before.values, *(values or {}).values()),
            conditions=before.conditions if condition is None else (*before.conditions, required(condition)),
            writes_all_matched=before.writes_all_matched or condition is None,
            matched=None if before.matched is None else (*before.matched, say),
        )
        return DeltaMergeBuilder(self._spark, grown._jbuilder, clauses)

    def _with(
        self,
        grown: stock.DeltaMergeBuilder,
        condition: OptionalCondition = None,
        *,
        values: OptionalAssignments = None,
        is_by_source: bool = False,
    ) -> DeltaMergeBuilder:
        clauses = replace(self._clauses, values=(*self._clauses.values, *(values or {}).values()), matched=None)
        if is_by_source:
            clauses = replace(clauses, by_source=(*clauses.by_source, column_of(condition)))
        return DeltaMergeBuilder(self._spark, grown._jbuilder, clauses)


def merged(table: stock.DeltaTable, source: DataFrame, on: Column, clauses: Sequence[Clause]) -> DataFrame:
    """Executes a stock MERGE."""
    merge: Any = table.merge(source, on)
    for say in clauses:
        merge = say(merge)
    result: DataFrame = merge.execute()
    return result


def column_of(condition: OptionalCondition) -> Column | None:
    return None if condition is None else required(condition)


def required(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value
