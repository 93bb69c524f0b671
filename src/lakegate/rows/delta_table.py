"""`DeltaTable` with one changed import: the stock class, whose DELETE, UPDATE, MERGE and OPTIMIZE lose no race.

Every method is stock Delta's. Those four are executed by stock Delta, too; only their commit, if another one came first, is
made to follow it instead of being refused.
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
from lakegate.rows.execution import location_of, run
from lakegate.rows.explain import Explanation, explain
from lakegate.rows.result import Result, told
from lakegate.rows.statement import Dml, relocation

OptionalCondition = str | Column | None
OptionalAssignments = Mapping[str, str | Column] | None
Clause = Callable[[Any], Any]
"""Says a clause of a MERGE to a stock builder, and returns the builder with it."""


class DeltaTable(stock.DeltaTable):
    """A Delta table. Use `forPath` or `forName`, as with stock Delta."""

    def __init__(self, spark: SparkSession, jdt: Any, alias: str | None = None) -> None:
        super().__init__(spark, jdt)
        self._name = alias

    @classmethod
    def forPath(cls, sparkSession: SparkSession, path: str, hadoopConf: dict[str, str] = {}) -> DeltaTable:  # noqa: B006  # as the stock class has it
        """Source: `delta.tables.DeltaTable.forPath`.

        Raises:
            InvalidRequest: `hadoopConf` is given: commits are made with the session's file system settings.
        """
        if hadoopConf:
            raise InvalidRequest(
                "settings of the file system for one table are not handled; nothing was done",
                advice="Set them for the session: lakegate.session(conf={'spark.hadoop.…': …})",
            )
        return _ours(stock.DeltaTable.forPath(sparkSession, path))

    @classmethod
    def forName(cls, sparkSession: SparkSession, tableOrViewName: str) -> DeltaTable:
        """Source: `delta.tables.DeltaTable.forName`."""
        return _ours(stock.DeltaTable.forName(sparkSession, tableOrViewName))

    @classmethod
    def convertToDelta(
        cls, sparkSession: SparkSession, identifier: str, partitionSchema: StructType | str | None = None
    ) -> DeltaTable:
        """Source: `delta.tables.DeltaTable.convertToDelta`."""
        return _ours(stock.DeltaTable.convertToDelta(sparkSession, identifier, cast("Any", partitionSchema)))

    @classmethod
    def create(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTable.create`."""
        return DeltaTableBuilder._of(stock.DeltaTable.create(sparkSession))

    @classmethod
    def createIfNotExists(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTable.createIfNotExists`."""
        return DeltaTableBuilder._of(stock.DeltaTable.createIfNotExists(sparkSession))

    @classmethod
    def replace(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTable.replace`."""
        return DeltaTableBuilder._of(stock.DeltaTable.replace(sparkSession))

    @classmethod
    def createOrReplace(cls, sparkSession: SparkSession | None = None) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTable.createOrReplace`."""
        return DeltaTableBuilder._of(stock.DeltaTable.createOrReplace(sparkSession))

    def alias(self, aliasName: str) -> DeltaTable:
        """Source: `delta.tables.DeltaTable.alias`."""
        return DeltaTable(self._spark, super().alias(aliasName)._jdt, aliasName)

    def delete(self, condition: OptionalCondition = None) -> Result:  # type: ignore[override]  # stock: None
        """Deletes rows, and tells how: see `Result`.

        Source: `delta.tables.DeltaTable.delete`.
        """
        return run(self._deletion(condition))

    def update(  # type: ignore[override]  # stock: None
        self, condition: OptionalCondition = None, set: OptionalAssignments = None
    ) -> Result:
        """Updates rows, and tells how: see `Result`.

        Source: `delta.tables.DeltaTable.update`.
        """
        return run(self._updating(condition, set))

    def merge(self, source: DataFrame, condition: str | Column) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaTable.merge`."""
        begun = super().merge(source, condition)
        clauses = _Clauses(self, source, _column(condition))
        return DeltaMergeBuilder(self._spark, begun._jbuilder, clauses)

    def optimize(self) -> DeltaOptimizeBuilder:
        """Source: `delta.tables.DeltaTable.optimize`."""
        return DeltaOptimizeBuilder(self._spark, super().optimize()._jbuilder, self._location)

    @telling_conflicts()
    def restoreToVersion(self, version: int) -> DataFrame:
        """Source: `delta.tables.DeltaTable.restoreToVersion`."""
        return super().restoreToVersion(version)

    @telling_conflicts()
    def restoreToTimestamp(self, timestamp: str) -> DataFrame:
        """Source: `delta.tables.DeltaTable.restoreToTimestamp`."""
        return super().restoreToTimestamp(timestamp)

    def _made(self, jdt: Any) -> DeltaTable:
        return DeltaTable(self._spark, jdt)  # stock says that it gives a table, and gives the JVM's object

    @telling_conflicts()
    def clone(
        self, target: str, isShallow: bool = False, replace: bool = False, properties: dict[str, str] | None = None
    ) -> DeltaTable:
        """Source: `delta.tables.DeltaTable.clone`."""
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
        """Source: `delta.tables.DeltaTable.cloneAtVersion`."""
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
        """Source: `delta.tables.DeltaTable.cloneAtTimestamp`."""
        return self._made(super().cloneAtTimestamp(timestamp, target, isShallow, replace, properties))

    @telling_conflicts()
    def vacuum(self, retentionHours: float | None = None) -> DataFrame:
        """Source: `delta.tables.DeltaTable.vacuum`."""
        return super().vacuum(retentionHours)

    @telling_conflicts()
    def upgradeTableProtocol(self, readerVersion: int, writerVersion: int) -> None:
        """Source: `delta.tables.DeltaTable.upgradeTableProtocol`."""
        super().upgradeTableProtocol(readerVersion, writerVersion)

    @telling_conflicts()
    def addFeatureSupport(self, featureName: str) -> None:
        """Source: `delta.tables.DeltaTable.addFeatureSupport`."""
        super().addFeatureSupport(featureName)

    @telling_conflicts()
    def dropFeatureSupport(self, featureName: str, truncateHistory: bool | None = None) -> None:
        """Source: `delta.tables.DeltaTable.dropFeatureSupport`."""
        super().dropFeatureSupport(featureName, truncateHistory)

    def explain_delete(self, condition: OptionalCondition = None) -> Explanation:
        """What a `delete` would depend on, and what becomes of it beside others; nothing is executed."""
        return explain(self._deletion(condition))

    def explain_update(self, condition: OptionalCondition = None, set: OptionalAssignments = None) -> Explanation:
        """What an `update` would depend on, and what becomes of it beside others; nothing is executed."""
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
        """The stock class at another path, under the same name."""
        table = stock.DeltaTable.forPath(self._spark, path)
        return table if self._name is None else table.alias(self._name)


@dataclass(frozen=True)
class _Clauses:
    """What a MERGE says, as far as it matters to others."""

    table: DeltaTable
    source: DataFrame
    on: Column | None
    by_source: Sequence[Column | None] = ()
    """Conditions of its WHEN NOT MATCHED BY SOURCE."""
    values: Sequence[str | Column] = ()
    """What it assigns."""
    writes_all_matched: bool = False
    conditions: Sequence[Column] = ()
    """Of its WHEN MATCHED."""
    matched: Sequence[Clause] | None = ()
    """Each WHEN MATCHED, to be said of another table; None where there are other clauses."""

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
    """A MERGE that is being said. Source: `delta.tables.DeltaMergeBuilder`."""

    def __init__(self, spark: SparkSession, jbuilder: Any, clauses: _Clauses) -> None:
        super().__init__(spark, jbuilder)
        self._clauses = clauses

    def whenMatchedUpdate(
        self, condition: OptionalCondition = None, set: OptionalAssignments = None
    ) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.whenMatchedUpdate`."""
        # What is said once may be said again later, whatever the caller does with its dictionary meanwhile.
        values = dict(set) if isinstance(set, dict) else set
        return self._matched(lambda merge: merge.whenMatchedUpdate(condition, values), super(), condition, values)

    def whenMatchedUpdateAll(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.whenMatchedUpdateAll`."""
        return self._matched(lambda merge: merge.whenMatchedUpdateAll(condition), super(), condition)

    def whenMatchedDelete(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.whenMatchedDelete`."""
        return self._matched(lambda merge: merge.whenMatchedDelete(condition), super(), condition)

    def whenNotMatchedInsert(
        self, condition: OptionalCondition = None, values: OptionalAssignments = None
    ) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedInsert`."""
        grown: Any = super()
        return self._with(grown.whenNotMatchedInsert(condition, values), values=values)

    def whenNotMatchedInsertAll(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedInsertAll`."""
        return self._with(super().whenNotMatchedInsertAll(condition))

    def whenNotMatchedBySourceUpdate(
        self, condition: OptionalCondition = None, set: OptionalAssignments = None
    ) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedBySourceUpdate`."""
        grown: Any = super()
        return self._with(grown.whenNotMatchedBySourceUpdate(condition, set), condition, values=set, is_by_source=True)

    def whenNotMatchedBySourceDelete(self, condition: OptionalCondition = None) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.whenNotMatchedBySourceDelete`."""
        return self._with(super().whenNotMatchedBySourceDelete(condition), condition, is_by_source=True)

    def withSchemaEvolution(self) -> DeltaMergeBuilder:
        """Source: `delta.tables.DeltaMergeBuilder.withSchemaEvolution`."""
        return self._with(super().withSchemaEvolution())

    def execute(self) -> DataFrame:
        """Executes it. The stock result, with how it got there as its attribute `lakegate`: see `Result`.

        Source: `delta.tables.DeltaMergeBuilder.execute`.
        """
        result = run(self._clauses.dml(super().execute))
        return told(result.returned if result.returned is not None else result.counted(self._spark), result)

    def explain(self) -> Explanation:
        """What it would depend on, and what becomes of it beside others; nothing is executed."""
        return explain(self._clauses.dml(super().execute))

    def _matched(
        self,
        say: Clause,
        stocks: Any,
        condition: OptionalCondition,
        values: OptionalAssignments = None,
    ) -> DeltaMergeBuilder:
        grown, before = say(stocks), self._clauses  # what stock Delta refuses, it refuses first
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
    """An OPTIMIZE that is being said. Source: `delta.tables.DeltaOptimizeBuilder`."""

    def __init__(self, spark: SparkSession, jbuilder: Any, table: TableLocation) -> None:
        super().__init__(spark, jbuilder)
        self._table = table

    def where(self, partitionFilter: str) -> DeltaOptimizeBuilder:
        """Source: `delta.tables.DeltaOptimizeBuilder.where`."""
        return DeltaOptimizeBuilder(self._spark, super().where(partitionFilter)._jbuilder, self._table)

    def executeCompaction(self) -> DataFrame:
        """Source: `delta.tables.DeltaOptimizeBuilder.executeCompaction`."""
        return self._run(super().executeCompaction)

    def executeZOrderBy(self, *cols: str | list[str] | tuple[str, ...]) -> DataFrame:
        """Source: `delta.tables.DeltaOptimizeBuilder.executeZOrderBy`."""
        stocks: Any = super()
        return self._run(lambda: stocks.executeZOrderBy(*cols))

    def explain(self) -> Explanation:
        """What becomes of it beside others, whatever it is sorted by; nothing is executed."""
        return explain(relocation(self._spark, self._table, super().executeCompaction))

    def _run(self, execute: Callable[[], DataFrame]) -> DataFrame:
        return optimized(self._spark, self._table, execute)


class DeltaTableBuilder(stock.DeltaTableBuilder):
    """A table that is being made. Source: `delta.tables.DeltaTableBuilder`."""

    @classmethod
    def _of(cls, begun: stock.DeltaTableBuilder) -> DeltaTableBuilder:
        return cls(begun._spark, begun._jbuilder)

    def tableName(self, identifier: str) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTableBuilder.tableName`."""
        super().tableName(identifier)
        return self

    def location(self, location: str) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTableBuilder.location`."""
        super().location(location)
        return self

    def comment(self, comment: str) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTableBuilder.comment`."""
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
        """Source: `delta.tables.DeltaTableBuilder.addColumn`."""
        super().addColumn(colName, dataType, nullable, generatedAlwaysAs, generatedByDefaultAs, comment)
        return self

    def addColumns(self, cols: StructType | list[StructField]) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTableBuilder.addColumns`."""
        super().addColumns(cols)
        return self

    def partitionedBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTableBuilder.partitionedBy`."""
        grown: Any = super()
        grown.partitionedBy(*cols)
        return self

    def clusterBy(self, *cols: str | list[str] | tuple[str, ...]) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTableBuilder.clusterBy`."""
        grown: Any = super()
        grown.clusterBy(*cols)
        return self

    def property(self, key: str, value: str) -> DeltaTableBuilder:
        """Source: `delta.tables.DeltaTableBuilder.property`."""
        super().property(key, value)
        return self

    @telling_conflicts()
    def execute(self) -> DeltaTable:
        """Source: `delta.tables.DeltaTableBuilder.execute`."""
        return _ours(super().execute())


def merged(table: stock.DeltaTable, source: DataFrame, on: Column, clauses: Sequence[Clause]) -> DataFrame:
    """Executes a stock MERGE."""
    merge: Any = table.merge(source, on)
    for say in clauses:
        merge = say(merge)
    result: DataFrame = merge.execute()
    return result


def optimized(spark: SparkSession, table: TableLocation, execute: Callable[[], object]) -> DataFrame:
    """An OPTIMIZE that loses no race: the stock result, or one of the same columns with what the table's history says."""
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
    return told(frame, result)


def _optimize_schema(spark: SparkSession) -> StructType:
    """What Delta says of an OPTIMIZE, whichever it is; what only a stock result knows may be null."""
    plan: Any = cast("Any", spark)._jsparkSession.sessionState().sqlParser().parsePlan("OPTIMIZE delta.`any`")
    schema = json.loads(plan.schema().json())
    return StructType.fromJson(json.loads(json.dumps(schema).replace('"nullable": false', '"nullable": true')))


def _ours(table: stock.DeltaTable) -> DeltaTable:
    return DeltaTable(table._spark, table._jdt)


def _column(condition: OptionalCondition) -> Column | None:
    return None if condition is None else _required(condition)


def _required(value: str | Column) -> Column:
    return F.expr(value) if isinstance(value, str) else value
