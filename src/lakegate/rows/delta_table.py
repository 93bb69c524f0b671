"""`DeltaTable` with one changed import: the stock class, whose DELETE, UPDATE, MERGE and OPTIMIZE do not fail on a conflict.

Stock Delta executes every method. If another commit came first, the commit of these four is rebased onto it instead of refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import delta.tables as stock
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.conflict_details import telling_conflicts
from lakegate.rows.explain import Explanation, explain
from lakegate.rows.result import Result, with_result
from lakegate.rows.statement import Dml, location_of, relocation
from lakegate.rows.thread_scope import run

OptionalCondition = str | Column | None
OptionalAssignments = Mapping[str, str | Column] | None
Clause = Callable[[Any], Any]
"""Adds a clause of a MERGE to a stock builder, and returns the builder."""


class DeltaTable(stock.DeltaTable):
    """A Delta table. Use `forPath` or `forName`, as with stock Delta."""

    def __init__(self, spark: SparkSession, jdt: Any, alias: str | None = None) -> None:
        super().__init__(spark, jdt)
        self._name = alias

    @classmethod
    def forPath(cls, sparkSession: SparkSession, path: str, hadoopConf: dict[str, str] = {}) -> DeltaTable:  # noqa: B006  # as the stock class has it
        """Opens the table at a path.

        Args:
            sparkSession: The session.
            path: The table's folder.
            hadoopConf: Must be empty.

        Returns:
            The table.

        Raises:
            InvalidRequest: `hadoopConf` is given: commits are made with the session's file system settings.

        Example:
            ```python
            people = DeltaTable.forPath(spark, "/lake/people")
            ```

        Source: `delta.tables.DeltaTable.forPath`.
        """
        if hadoopConf:
            raise InvalidRequest(
                "settings of the file system for one table are not handled; nothing was done",
                advice="Set them for the session: lakegate.session(conf={'spark.hadoop.…': …})",
            )
        return _ours(stock.DeltaTable.forPath(sparkSession, path))

    @classmethod
    def forName(cls, sparkSession: SparkSession, tableOrViewName: str) -> DeltaTable:
        """Opens a table of the catalog.

        Args:
            sparkSession: The session.
            tableOrViewName: Its name, as `people` or `sales.people`.

        Returns:
            The table.

        Example:
            ```python
            people = DeltaTable.forName(spark, "sales.people")
            ```

        Source: `delta.tables.DeltaTable.forName`.
        """
        return _ours(stock.DeltaTable.forName(sparkSession, tableOrViewName))

    @classmethod
    def convertToDelta(
        cls, sparkSession: SparkSession, identifier: str, partitionSchema: StructType | str | None = None
    ) -> DeltaTable:
        """Makes a Delta table of Parquet files, in place; the files stay as they are.

        Args:
            sparkSession: The session.
            identifier: ``parquet.`PATH` ``.
            partitionSchema: Columns by which the folders are partitioned, as DDL or a StructType; None: there are none.

        Returns:
            The table.

        Example:
            ```python
            DeltaTable.convertToDelta(spark, "parquet.`/lake/events`", "day DATE")
            ```

        Source: `delta.tables.DeltaTable.convertToDelta`.
        """
        return _ours(stock.DeltaTable.convertToDelta(sparkSession, identifier, cast("Any", partitionSchema)))

    @classmethod
    def create(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Begins a table that must not exist yet.

        Args:
            sparkSession: The session; None: the active one.

        Returns:
            A builder; `execute()` makes the table.

        Example:
            ```python
            DeltaTable.create(spark).location("/lake/people").addColumn("id", "BIGINT").execute()
            ```

        Source: `delta.tables.DeltaTable.create`.
        """
        return DeltaTableBuilder._of(stock.DeltaTable.create(sparkSession))

    @classmethod
    def createIfNotExists(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Begins a table; if it exists, `execute()` leaves it as it is.

        Args:
            sparkSession: The session; None: the active one.

        Returns:
            A builder.

        Source: `delta.tables.DeltaTable.createIfNotExists`.
        """
        return DeltaTableBuilder._of(stock.DeltaTable.createIfNotExists(sparkSession))

    @classmethod
    def replace(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Begins the replacement of a table that exists.

        Args:
            sparkSession: The session; None: the active one.

        Returns:
            A builder.

        Source: `delta.tables.DeltaTable.replace`.
        """
        return DeltaTableBuilder._of(stock.DeltaTable.replace(sparkSession))

    @classmethod
    def createOrReplace(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Begins a table; if it exists, `execute()` replaces it.

        Args:
            sparkSession: The session; None: the active one.

        Returns:
            A builder.

        Source: `delta.tables.DeltaTable.createOrReplace`.
        """
        return DeltaTableBuilder._of(stock.DeltaTable.createOrReplace(sparkSession))

    def alias(self, aliasName: str) -> DeltaTable:
        """Gives the table a name for conditions and assignments.

        Args:
            aliasName: The name.

        Returns:
            The table under that name.

        Example:
            ```python
            people.alias("t").merge(updates.alias("s"), "t.id = s.id")
            ```

        Source: `delta.tables.DeltaTable.alias`.
        """
        return DeltaTable(self._spark, super().alias(aliasName)._jdt, aliasName)

    def delete(self, condition: OptionalCondition = None) -> Result:  # type: ignore[override]  # stock: None
        """Deletes rows.

        Args:
            condition: Which rows, as SQL text or a Column; None: all.

        Returns:
            How the statement was committed; `result.rows` counts the rows.

        Example:
            ```python
            people.delete("left_on < DATE '2020-01-01'")
            ```

        Source: `delta.tables.DeltaTable.delete`.
        """
        return run(self._deletion(condition))

    def update(  # type: ignore[override]  # stock: None
        self, condition: OptionalCondition = None, set: OptionalAssignments = None
    ) -> Result:
        """Updates rows.

        Args:
            condition: Which rows, as SQL text or a Column; None: all.
            set: Column name → value, as SQL text or a Column.

        Returns:
            How the statement was committed; `result.rows` counts the rows.

        Example:
            ```python
            people.update("id = 7", {"name": "'Ada'", "seen": "seen + 1"})
            ```

        Source: `delta.tables.DeltaTable.update`.
        """
        return run(self._updating(condition, set))

    def merge(self, source: DataFrame, condition: str | Column) -> DeltaMergeBuilder:
        """Begins a MERGE of a source into the table.

        Args:
            source: The rows to merge.
            condition: Which row of the source belongs to which row of the table, as SQL text or a Column.

        Returns:
            A builder: add WHEN clauses, then `execute()`.

        Example:
            ```python
            (
                people.alias("t")
                .merge(updates.alias("s"), "t.id = s.id")
                .whenMatchedUpdateAll()
                .whenNotMatchedInsertAll()
                .execute()
            )
            ```

        Source: `delta.tables.DeltaTable.merge`.
        """
        begun = super().merge(source, condition)
        clauses = _Clauses(self, source, _column(condition))
        return DeltaMergeBuilder(self._spark, begun._jbuilder, clauses)

    def optimize(self) -> DeltaOptimizeBuilder:
        """Begins an OPTIMIZE.

        Returns:
            A builder: `where`, then `executeCompaction` or `executeZOrderBy`.

        Example:
            ```python
            people.optimize().where("day = '2026-01-01'").executeCompaction()
            ```

        Source: `delta.tables.DeltaTable.optimize`.
        """
        return DeltaOptimizeBuilder(self._spark, super().optimize()._jbuilder, self._location)

    @telling_conflicts()
    def restoreToVersion(self, version: int) -> DataFrame:
        """Restores the table to an earlier version, as a new commit.

        Args:
            version: The number of the version.

        Returns:
            Metrics of the restore: one row.

        Example:
            ```python
            people.restoreToVersion(12)
            ```

        Source: `delta.tables.DeltaTable.restoreToVersion`.
        """
        return super().restoreToVersion(version)

    @telling_conflicts()
    def restoreToTimestamp(self, timestamp: str) -> DataFrame:
        """Restores the table to the version of a moment, as a new commit.

        Args:
            timestamp: `yyyy-MM-dd` or `yyyy-MM-dd HH:mm:ss`, in the session's time zone.

        Returns:
            Metrics of the restore: one row.

        Example:
            ```python
            people.restoreToTimestamp("2026-01-31 08:00:00")
            ```

        Source: `delta.tables.DeltaTable.restoreToTimestamp`.
        """
        return super().restoreToTimestamp(timestamp)

    def _made(self, jdt: Any) -> DeltaTable:
        return DeltaTable(self._spark, jdt)  # stock is typed to return a table, and returns the JVM's object

    @telling_conflicts()
    def clone(
        self, target: str, isShallow: bool = False, replace: bool = False, properties: dict[str, str] | None = None
    ) -> DeltaTable:
        """Clones the newest version to another place.

        Args:
            target: Path or name of the clone.
            isShallow: Refer to this table's files instead of copying them.
            replace: Replace what is at `target`.
            properties: Table properties of the clone.

        Returns:
            The clone.

        Example:
            ```python
            people.clone("/lake/people-test", isShallow=True)
            ```

        Source: `delta.tables.DeltaTable.clone`.
        """
        return self._made(super().clone(target, isShallow, replace, properties))

    @telling_conflicts()
    def cloneAtVersion(
        self,
        version: int,
        target: str,
        isShallow: bool = False,
        replace: bool = False,
        properties: dict[str, str] | None = None,
    ) -> DeltaTable:
        """Clones an earlier version to another place.

        Args:
            version: The number of the version.
            target: Path or name of the clone.
            isShallow: Refer to this table's files instead of copying them.
            replace: Replace what is at `target`.
            properties: Table properties of the clone.

        Returns:
            The clone.

        Source: `delta.tables.DeltaTable.cloneAtVersion`.
        """
        return self._made(super().cloneAtVersion(version, target, isShallow, replace, properties))

    @telling_conflicts()
    def cloneAtTimestamp(
        self,
        timestamp: str,
        target: str,
        isShallow: bool = False,
        replace: bool = False,
        properties: dict[str, str] | None = None,
    ) -> DeltaTable:
        """Clones the version of a moment to another place.

        Args:
            timestamp: `yyyy-MM-dd` or `yyyy-MM-dd HH:mm:ss`, in the session's time zone.
            target: Path or name of the clone.
            isShallow: Refer to this table's files instead of copying them.
            replace: Replace what is at `target`.
            properties: Table properties of the clone.

        Returns:
            The clone.

        Source: `delta.tables.DeltaTable.cloneAtTimestamp`.
        """
        return self._made(super().cloneAtTimestamp(timestamp, target, isShallow, replace, properties))

    @telling_conflicts()
    def vacuum(self, retentionHours: float | None = None) -> DataFrame:
        """Deletes files that no version within the retention needs.

        Args:
            retentionHours: Hours; None: the table's `delta.deletedFileRetentionDuration`, a week by default.

        Returns:
            An empty data frame.

        Example:
            ```python
            people.vacuum(168)
            ```

        Source: `delta.tables.DeltaTable.vacuum`.
        """
        return super().vacuum(retentionHours)

    @telling_conflicts()
    def upgradeTableProtocol(self, readerVersion: int, writerVersion: int) -> None:
        """Raises the protocol of the table; older readers or writers can then no longer use the table.

        Args:
            readerVersion: The least version of a reader.
            writerVersion: The least version of a writer.

        Source: `delta.tables.DeltaTable.upgradeTableProtocol`.
        """
        super().upgradeTableProtocol(readerVersion, writerVersion)

    @telling_conflicts()
    def addFeatureSupport(self, featureName: str) -> None:
        """Adds a table feature to the protocol of the table.

        Args:
            featureName: As `deletionVectors`.

        Example:
            ```python
            people.addFeatureSupport("deletionVectors")
            ```

        Source: `delta.tables.DeltaTable.addFeatureSupport`.
        """
        super().addFeatureSupport(featureName)

    @telling_conflicts()
    def dropFeatureSupport(self, featureName: str, truncateHistory: bool | None = None) -> None:
        """Removes a table feature from the protocol of the table.

        Args:
            featureName: As `deletionVectors`.
            truncateHistory: Also remove older versions that use the feature.

        Source: `delta.tables.DeltaTable.dropFeatureSupport`.
        """
        super().dropFeatureSupport(featureName, truncateHistory)

    def explain_delete(self, condition: OptionalCondition = None) -> Explanation:
        """Explains on what a `delete` depends, and what a concurrent commit means for it; executes nothing."""
        return explain(self._deletion(condition))

    def explain_update(self, condition: OptionalCondition = None, set: OptionalAssignments = None) -> Explanation:
        """Explains on what an `update` depends, and what a concurrent commit means for it; executes nothing."""
        return explain(self._updating(condition, set))

    @property
    def _location(self) -> TableLocation:
        return location_of(self._jdt)

    def _deletion(self, condition: OptionalCondition) -> Dml:
        stocks: Any = super()
        return Dml(
            session=self._spark,
            table=self._location,
            operation=Operation.DELETE,
            execute=lambda: stocks.delete(condition),
            execute_on=lambda path: self._at(path).delete(condition),
            alias=self._name,
            condition=_column(condition),
        )

    def _updating(self, condition: OptionalCondition, set: OptionalAssignments) -> Dml:
        stocks: Any = super()
        at: Callable[[str], Any] = self._at
        return Dml(
            session=self._spark,
            table=self._location,
            operation=Operation.UPDATE,
            execute=lambda: stocks.update(condition, set),
            execute_on=lambda path: at(path).update(condition, set),
            alias=self._name,
            condition=_column(condition),
            assigned={name: _required(value) for name, value in (set or {}).items()},
        )

    def _at(self, path: str) -> stock.DeltaTable:
        """Opens the stock class at another path, under the same alias."""
        table = stock.DeltaTable.forPath(self._spark, path)
        return table if self._name is None else table.alias(self._name)


@dataclass(frozen=True)
class _Clauses:
    """The parts of a MERGE that its rebase needs."""

    table: DeltaTable
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

    def dml(self, execute: Callable[[], object]) -> Dml:
        conditions = [column for column in self.by_source if column is not None]
        every = None
        if self.by_source and len(conditions) == len(self.by_source):
            every = conditions[0]
            for other in conditions[1:]:
                every = every | other
        return Dml(
            session=self.table._spark,
            table=self.table._location,
            operation=Operation.MERGE,
            execute=execute,
            execute_on=None if self.matched is None else self._execute_on,
            alias=self.table._name,
            condition=every,
            values=[_required(value) for value in self.values],
            source=self.source,
            on=self.on,
            has_not_matched_by_source=bool(self.by_source),
            writes_all_matched=self.writes_all_matched,
            conditions=self.conditions,
        )

    def _execute_on(self, path: str) -> object:
        assert self.on is not None, "a MERGE has a condition"
        assert self.matched is not None, "one with other clauses is not divisible"
        return merged(self.table._at(path), self.source, self.on, self.matched)


class DeltaMergeBuilder(stock.DeltaMergeBuilder):
    """Builds a MERGE. Source: `delta.tables.DeltaMergeBuilder`."""

    def __init__(self, spark: SparkSession, jbuilder: Any, clauses: _Clauses) -> None:
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
        result = run(self._clauses.dml(super().execute))
        return with_result(result.returned if result.returned is not None else result.counted(self._spark), result)

    def explain(self) -> Explanation:
        """Explains on what the MERGE depends, and what a concurrent commit means for it; executes nothing."""
        return explain(self._clauses.dml(super().execute))

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
            conditions=before.conditions if condition is None else (*before.conditions, _required(condition)),
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
            clauses = replace(clauses, by_source=(*clauses.by_source, _column(condition)))
        return DeltaMergeBuilder(self._spark, grown._jbuilder, clauses)


class DeltaOptimizeBuilder(stock.DeltaOptimizeBuilder):
    """Builds an OPTIMIZE. Source: `delta.tables.DeltaOptimizeBuilder`."""

    def __init__(self, spark: SparkSession, jbuilder: Any, table: TableLocation) -> None:
        super().__init__(spark, jbuilder)
        self._table = table

    def where(self, partitionFilter: str) -> DeltaOptimizeBuilder:
        """Limits the OPTIMIZE to partitions.

        Args:
            partitionFilter: A condition of partition columns alone, as SQL text.

        Returns:
            The builder.

        Source: `delta.tables.DeltaOptimizeBuilder.where`.
        """
        return DeltaOptimizeBuilder(self._spark, super().where(partitionFilter)._jbuilder, self._table)

    def executeCompaction(self) -> DataFrame:
        """Compacts small files.

        Returns:
            The stock metrics: one row, with a `Result` as its attribute `lakegate`.

        Source: `delta.tables.DeltaOptimizeBuilder.executeCompaction`.
        """
        return self._run(super().executeCompaction)

    def executeZOrderBy(self, *cols: str | list[str] | tuple[str, ...]) -> DataFrame:
        """Writes the files again, sorted along a Z-order curve.

        Args:
            cols: Names of columns, which must not be partition columns.

        Returns:
            The stock metrics: one row, with a `Result` as its attribute `lakegate`.

        Example:
            ```python
            people.optimize().executeZOrderBy("country", "city")
            ```

        Source: `delta.tables.DeltaOptimizeBuilder.executeZOrderBy`.
        """
        stocks: Any = super()
        return self._run(lambda: stocks.executeZOrderBy(*cols))

    def explain(self) -> Explanation:
        """Explains what a concurrent commit means for the OPTIMIZE, whatever its sort order; executes nothing."""
        return explain(relocation(self._spark, self._table, super().executeCompaction))

    def _run(self, execute: Callable[[], DataFrame]) -> DataFrame:
        return optimized(self._spark, self._table, execute)


class DeltaTableBuilder(stock.DeltaTableBuilder):
    """Builds a table. Source: `delta.tables.DeltaTableBuilder`."""

    @classmethod
    def _of(cls, begun: stock.DeltaTableBuilder) -> DeltaTableBuilder:
        return cls(begun._spark, begun._jbuilder)

    def tableName(self, identifier: str) -> DeltaTableBuilder:
        """Sets the table's name in the catalog.

        Args:
            identifier: As `sales.people`.

        Returns:
            The builder.

        Source: `delta.tables.DeltaTableBuilder.tableName`.
        """
        super().tableName(identifier)
        return self

    def location(self, location: str) -> DeltaTableBuilder:
        """Sets the table's path.

        Args:
            location: The path.

        Returns:
            The builder.

        Source: `delta.tables.DeltaTableBuilder.location`.
        """
        super().location(location)
        return self

    def comment(self, comment: str) -> DeltaTableBuilder:
        """Sets the table's comment.

        Args:
            comment: The text.

        Returns:
            The builder.

        Source: `delta.tables.DeltaTableBuilder.comment`.
        """
        super().comment(comment)
        return self

    def addColumn(
        self,
        colName: str,
        dataType: str | DataType,
        nullable: bool = True,
        generatedAlwaysAs: str | stock.IdentityGenerator | None = None,
        generatedByDefaultAs: stock.IdentityGenerator | None = None,
        comment: str | None = None,
    ) -> DeltaTableBuilder:
        """Adds a column.

        Args:
            colName: Its name.
            dataType: DDL text or a DataType.
            nullable: Whether NULL is allowed.
            generatedAlwaysAs: SQL that gives the value, or an `IdentityGenerator`.
            generatedByDefaultAs: An `IdentityGenerator` for rows that give no value.
            comment: The column's comment.

        Returns:
            The builder.

        Example:
            ```python
            .addColumn("day", "DATE", generatedAlwaysAs="CAST(at AS DATE)")
            ```

        Source: `delta.tables.DeltaTableBuilder.addColumn`.
        """
        super().addColumn(colName, dataType, nullable, generatedAlwaysAs, generatedByDefaultAs, comment)
        return self

    def addColumns(self, cols: StructType | list[StructField]) -> DeltaTableBuilder:
        """Adds columns.

        Args:
            cols: A StructType, or fields.

        Returns:
            The builder.

        Source: `delta.tables.DeltaTableBuilder.addColumns`.
        """
        super().addColumns(cols)
        return self

    def partitionedBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Sets the partition columns.

        Args:
            cols: Their names.

        Returns:
            The builder.

        Source: `delta.tables.DeltaTableBuilder.partitionedBy`.
        """
        grown: Any = super()
        grown.partitionedBy(*cols)
        return self

    def clusterBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Sets the columns for liquid clustering.

        Args:
            cols: Their names.

        Returns:
            The builder.

        Source: `delta.tables.DeltaTableBuilder.clusterBy`.
        """
        grown: Any = super()
        grown.clusterBy(*cols)
        return self

    def property(self, key: str, value: str) -> DeltaTableBuilder:
        """Sets a table property.

        Args:
            key: As `delta.enableChangeDataFeed`.
            value: The text.

        Returns:
            The builder.

        Source: `delta.tables.DeltaTableBuilder.property`.
        """
        super().property(key, value)
        return self

    @telling_conflicts()
    def execute(self) -> DeltaTable:
        """Makes the table.

        Returns:
            The table.

        Source: `delta.tables.DeltaTableBuilder.execute`.
        """
        return _ours(super().execute())


def merged(table: stock.DeltaTable, source: DataFrame, on: Column, clauses: Sequence[Clause]) -> DataFrame:
    """Executes a stock MERGE."""
    merge: Any = table.merge(source, on)
    for say in clauses:
        merge = say(merge)
    result: DataFrame = merge.execute()
    return result


def optimized(spark: SparkSession, table: TableLocation, execute: Callable[[], object]) -> DataFrame:
    """Runs an OPTIMIZE that is rebased on concurrent commits; returns the stock result, or its columns from the table's history."""
    result = run(relocation(spark, table, execute))
    frame: DataFrame | None = result.returned
    if frame is None:
        added, removed = result.files
        said = result.metrics.get
        sizes = {"min": said("minFileSize"), "max": said("maxFileSize")} if added else {}
        metrics = {
            "numFilesAdded": added,
            "numFilesRemoved": removed,
            "filesAdded": {**sizes, "totalFiles": added, "totalSize": said("numAddedBytes")},
            "filesRemoved": {"totalFiles": removed, "totalSize": said("numRemovedBytes")},
        }
        frame = spark.createDataFrame([{"path": str(table), "metrics": metrics}], _optimize_schema(spark))
    return with_result(frame, result)


def _optimize_schema(spark: SparkSession) -> StructType:
    """Returns the schema of Delta's result of any OPTIMIZE; all fields may be null, as the history lacks some values."""
    plan: Any = cast("Any", spark)._jsparkSession.sessionState().sqlParser().parsePlan("OPTIMIZE delta.`any`")
    schema = json.loads(plan.schema().json())
    return StructType.fromJson(json.loads(json.dumps(schema).replace('"nullable": false', '"nullable": true')))


def _ours(table: stock.DeltaTable) -> DeltaTable:
    return DeltaTable(table._spark, table._jdt)


def _column(condition: OptionalCondition) -> Column | None:
    return None if condition is None else _required(condition)


def _required(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value
