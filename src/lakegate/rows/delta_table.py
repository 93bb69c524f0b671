"""`DeltaTable` with one changed import: the stock class, whose DELETE, UPDATE, MERGE and OPTIMIZE do not fail on a conflict.

Stock Delta executes every method. If another commit came first, the commit of these four is rebased onto it instead of refused.
"""

from __future__ import annotations

from typing import Any, cast

import delta.tables as stock
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.conflict_details import telling_conflicts
from lakegate.rows.explain import Explanation, explain
from lakegate.rows.merge_builder import (
    Clauses,
    DeltaMergeBuilder,
    OptionalAssignments,
    OptionalCondition,
    column_of,
    opened_at,
    required,
)
from lakegate.rows.optimize_builder import DeltaOptimizeBuilder
from lakegate.rows.quick import of_delete, of_update
from lakegate.rows.result import Result
from lakegate.rows.statement import Dml, location_of
from lakegate.rows.thread_scope import run


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
        clauses = Clauses(self._spark, self._location, self._name, source, column_of(condition))
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
        concerned = column_of(condition)
        return Dml(
            session=self._spark,
            table=self._location,
            operation=Operation.DELETE,
            execute=lambda: stocks.delete(condition),
            quick=None if concerned is None else lambda jvm: of_delete(jvm, self._jdt, concerned),
            execute_on=lambda path: opened_at(self._spark, path, self._name).delete(condition),
            alias=self._name,
            condition=concerned,
        )

    def _updating(self, condition: OptionalCondition, set: OptionalAssignments) -> Dml:
        stocks: Any = super()
        concerned = column_of(condition)
        assigned = {name: required(value) for name, value in (set or {}).items()}

        def update_at(path: str) -> object:
            table: Any = opened_at(self._spark, path, self._name)
            return table.update(condition, set)

        return Dml(
            session=self._spark,
            table=self._location,
            operation=Operation.UPDATE,
            execute=lambda: stocks.update(condition, set),
            quick=None if concerned is None else lambda jvm: of_update(jvm, self._jdt, concerned, assigned),
            execute_on=update_at,
            alias=self._name,
            condition=concerned,
            assigned=assigned,
        )


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


def _ours(table: stock.DeltaTable) -> DeltaTable:
    return DeltaTable(table._spark, table._jdt)
