"""Finds the rows of the target that match a stream's requests, and changes them in one MERGE."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakegate.config import Erase, Mutate
from lakegate.delta.actions import Body
from lakegate.delta.table_log import NOTHING_COMES, TableMetadata
from lakegate.ids import TableLocation, Version
from lakegate.ports import WriteToken
from lakegate.quoting import quoted
from lakegate.rows import few_rows
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.delta_table import DeltaTable
from lakegate.rows.thread_scope import staged_statement
from lakegate.spark.fitting import comparable
from lakegate.spark.sources import BAD
from lakegate.streams.bad_records import column
from lakegate.streams.interfaces import StreamContext, noted
from lakegate.streams.requests.columns import digest
from lakegate.streams.requests.erased_keys import Erasures
from lakegate.streams.table_rules import GENERATED, Rule, marked, rules_broken_by, rules_of

BY_DIGEST = (BooleanType, DateType, DecimalType, IntegralType, StringType, TimestampNTZType, TimestampType)
"""Types of columns whose values are equal if and only if their digests are; but for texts with a collation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """The rows that matched the rules, counted by key."""

    version: Version
    rows: pa.Table
    """`key_hash`, the erasures' other columns, and `count`."""

    def counts(self) -> dict[str, int]:
        """Returns key → number of rows."""
        counts: dict[str, int] = {}
        for key, count in zip(self.rows["key_hash"].to_pylist(), self.rows["count"].to_pylist(), strict=True):
            counts[key] = counts.get(key, 0) + count
        return counts


class TargetRows:
    """The rows of the target that requests of one stream may change.

    Rules are Arrow tables of `key_hash`, `key`, `op`, `set`, one row per key. They become local relations, so Spark knows
    their size and broadcasts the small side of every join.
    """

    def __init__(self, context: StreamContext, kind: Mutate | Erase, erasures: Erasures | None) -> None:
        self._context, self._kind, self._erasures = context, kind, erasures
        self._match = list(kind.match)
        self._set = list(kind.set) if isinstance(kind, Mutate) else []
        self._others = list(erasures.other_columns) if erasures else []

    @property
    def session(self) -> SparkSession:
        """The stream's session."""
        return self._context.session

    def at(
        self, version: Version, paths: Collection[str] | None = None, coming: Mapping[str, Body] = NOTHING_COMES
    ) -> DataFrame:
        """Returns the table's rows, or the rows of these files and of `coming` (files that no commit has added yet)."""
        return self._context.log.read_at(self._context.session, self._context.target, version, paths, coming)

    def meet(
        self,
        rules: pa.Table,
        version: Version,
        paths: Collection[str] | None = None,
        coming: Mapping[str, Body] = NOTHING_COMES,
    ) -> Met:
        """Counts the rows that have a rule's key at `version`, or in these files of it and in `coming`."""
        rows = self.at(version, paths, coming)
        rows = rows.select(*[column(name) for name in dict.fromkeys([*self._match, *self._others])])
        if (few := self._few_met(rules, rows)) is not None:
            return Met(version=version, rows=few)
        # Renamed, because the table may have a column `key`.
        keys = self._frame(rules.select(["key_hash", "key"])).withColumnRenamed("key", "_lg_key")
        joined = rows.join(F.broadcast(keys), self._same("_lg_key"))
        counted = joined.groupBy("key_hash", *[column(name) for name in self._others]).count()
        return Met(version=version, rows=counted.toArrow())

    def _few_met(self, rules: pa.Table, rows: DataFrame) -> pa.Table | None:
        """Counts as `meet` does, without a Spark job; None if there may be many rows."""
        keys = rules["key"].combine_chunks()
        wanted = pa.table({name: keys.field(i) for i, name in enumerate(self._match)})
        kinds = [rows.schema[name].dataType for name in wanted.column_names]
        is_exact = all(_is_by_digest(field.dataType) for field in rows.schema.fields)
        if wanted.num_rows == 0 or not is_exact or [to_arrow_type(kind) for kind in kinds] != wanted.schema.types:
            return None
        if (found := few_rows.few(rows, wanted)) is None:
            return None
        key = digest({name: column(name) for name in self._match})
        met = few_rows.to_arrow(found.select(key.alias("key_hash"), *[column(name) for name in self._others]))
        names = met.column_names
        counted = _of_keys(met, rules["key_hash"]).group_by(names).aggregate([([], "count_all")])
        return counted.select([*names, "count_all"]).rename_columns([*names, "count"])

    def change(self, rules: pa.Table, steps: pa.Table, met: Met, token: WriteToken) -> None:
        """Applies each rule to the rows of its key, in one commit; rows that hold the values already stay unchanged.

        Args:
            rules: The change of each key's rows.
            steps: `key_hash`, `key`, `set` of every update on the path of a key; used to find rows that move to an erased key.
            met: The result of `meet` for these rules; keys without rows are left out.
            token: Goes into the commit, with the tested version.
        """
        source = self._frame(_of_keys(rules, met.rows["key_hash"]))
        condition = self._sql_same("s.key")
        if not self.is_decided_by_key:
            found = self._frame(met.rows.drop_columns(["count"]))
            ways = self._frame(_of_keys(steps, met.rows["key_hash"])).join(found, "key_hash")
            assert self._erasures is not None
            ids = ["key_hash", *self._others]
            doomed = self._erasures.rows_led_to_erased_keys(ways).select(*[column(name) for name in ids]).distinct()
            doomed = doomed.toDF(*[f"_lg_d{i}" for i in range(len(ids))])
            source = source.join(found, "key_hash")
            same = [column(name).eqNullSafe(F.col(f"_lg_d{i}")) for i, name in enumerate(ids)]
            op = F.when(F.col("_lg_d0").isNotNull(), F.lit("delete")).otherwise(F.col("op"))
            source = source.join(doomed, same, "left").withColumn("op", op)
            condition += "".join(f" AND t.{quoted(name)} <=> s.{quoted(name)}" for name in self._others)
        self._commit(source, condition, noted(token, tested=met.version))

    @property
    def is_decided_by_key(self) -> bool:
        """Returns True if a row's key alone decides what happens to the row."""
        return not self._others

    def stage(self, rules: pa.Table) -> Staged:
        """Prepares the MERGE of `change` without its commit, for rows that are decided by their key.

        It includes rules that match no row yet: matching rows may be added before the commit.
        """
        source = self._frame(rules)
        return self._staged(source, self._sql_same("s.key"))

    def change_rows(self, rules: pa.Table, version: Version, paths: Collection[str] | None, token: WriteToken) -> None:
        """Applies each rule to the rows of its key in these files only, where other rows of the key must stay unchanged.

        MERGE cannot be restricted to files, so a row is identified by all its values.
        """
        rows = self.at(version, paths)
        kinds = {field.name: field.dataType for field in rows.schema.fields}
        values = [F.expr(comparable(quoted(name), kind)).alias(name) for name, kind in kinds.items()]
        source = rows.select(*values).distinct()
        rule = self._frame(rules).select(F.struct("key", "op", "set").alias("_lg_rule"))
        source = source.join(F.broadcast(rule), self._same("_lg_rule.key"))
        source = source.select(
            F.struct(*[column(name) for name in kinds]).alias("_lg_row"), "_lg_rule.op", "_lg_rule.set"
        )
        condition = " AND ".join(
            f"{comparable(f't.{quoted(name)}', kind)} <=> s._lg_row.{quoted(name)}" for name, kind in kinds.items()
        )
        self._commit(source, condition, noted(token, tested=version))

    def out_of_line(self, standing: DataFrame, version: Version, paths: Collection[str] | None) -> pa.Table:
        """Returns the standing rules that rows in these files do not satisfy yet.

        Args:
            standing: `key_hash`, `key`, `op`, `set`, one row per key.
            version: The target's version.
            paths: Files; None for all.
        """
        rows = self.at(version, paths)
        rows = rows.select(*[column(name) for name in dict.fromkeys([*self._match, *self._set, *self._others])])
        differs = F.lit(True)
        if self._set:
            held = _holds(standing.schema["set"].dataType, self._set, "", "_lg_rule.set.")
            differs = (F.col("_lg_rule.op") != "update") | ~F.expr(held)
        rules = standing.select(F.struct("key_hash", "key", "op", "set").alias("_lg_rule"))
        met = rows.join(rules, self._same("_lg_rule.key")).where((F.col("_lg_rule.op") != "lift") & differs)
        hashes = met.select(F.col("_lg_rule.key_hash").alias("key_hash")).distinct()
        return standing.select("key_hash", "key", "op", "set").join(hashes, "key_hash", "left_semi").toArrow()

    @cached_property
    def _tests(self) -> tuple[list[Rule], list[Rule]]:
        """The table's rules that depend on the values that requests set: on those alone; and on other columns, too."""
        log, target = self._context.log, self._context.target
        metadata = log.metadata(target, log.seen(target))
        found = rules_of(metadata, [name for name in metadata.schema.names if not self._is_generated(metadata, name)])
        # A generated value depends on its source columns, so its own rules depend on them, too.
        changed = [*self._set, *self._generated(metadata)]
        found = [rule for rule in found if rule.may_hang_on(changed)]
        if not found:
            return [], []
        row = self.session.createDataFrame([], metadata.schema)
        assigned = {name.lower() for name in changed}
        without = row.drop(*[name for name in row.columns if name.lower() in assigned])
        own = {name.lower() for name in [*self._set, *self._match]}
        alone = row.select(*[column(name) for name in row.columns if name.lower() in own])
        hanging = [rule for rule in found if not rules_broken_by(without, [rule])]
        by_values = rules_broken_by(alone, hanging)
        return by_values, [rule for rule in hanging if all(rule is not one for one in by_values)]

    def _generated(self, metadata: TableMetadata) -> list[str]:
        """Returns columns that Delta computes again when a request sets their source columns; none if requests set nothing."""
        return [name for name in metadata.schema.names if self._set and self._is_generated(metadata, name)]

    def _is_generated(self, metadata: TableMetadata, name: str) -> bool:
        is_set = name.lower() in {one.lower() for one in self._set}
        return GENERATED in metadata.schema[name].metadata and not is_set

    @property
    def may_break_rules(self) -> bool:
        """Returns True if the table may refuse the values of a request because of a row's other columns."""
        return bool(self._tests[1])

    def broken(
        self, rules: pa.Table, version: Version, paths: Collection[str] | None = None, *, has_older: bool
    ) -> dict[str, str]:
        """Returns key → the rule of the table that its rows would break; keys without a broken rule are left out.

        Args:
            rules: The change of each key's rows.
            version: The target's version.
            paths: Files of the rows; None for all.
            has_older: Whether there are rules of earlier batches, which were not tested against the table's present rules.
        """
        alone, others = self._tests
        if rules.num_rows == 0 or not (others or (alone and has_older)):
            return {}
        log, target = self._context.log, self._context.target
        metadata = log.metadata(target, log.seen(target))
        rule = self._frame(rules).where("op = 'update'").select(F.struct("key_hash", "key", "set").alias("_lg_rule"))
        rows = self.at(version, paths).join(F.broadcast(rule), self._same("_lg_rule.key"))
        assigned = {name.lower(): F.col(f"_lg_rule.set.{quoted(name)}") for name in self._set}
        after = rows.select(
            *[
                assigned.get(field.name.lower(), column(field.name)).alias(field.name)
                for field in metadata.schema.fields
                if not self._is_generated(metadata, field.name)
            ],
            F.col("_lg_rule.key_hash").alias("_lg_key_hash"),
            F.lit(None).cast("string").alias(BAD),
        )
        found = marked(after, metadata).where(F.col(BAD).isNotNull()).groupBy("_lg_key_hash").agg(F.min(BAD).alias(BAD))
        return {row["_lg_key_hash"]: row[BAD] for row in found.collect()}

    def _commit(self, source: DataFrame, condition: str, token: WriteToken) -> None:
        publisher(self._context.session).finish(self._staged(source, condition), token)

    def _staged(self, source: DataFrame, condition: str) -> Staged:
        table = DeltaTable.forPath(self._context.session, self._context.target)
        merge: Any = table.alias("t").merge(source.alias("s"), condition)
        merge = merge.whenMatchedDelete("s.op IN ('delete', 'erase')")
        if self._set:
            holds = _holds(source.schema["set"].dataType, self._set, "t.", "s.set.")
            values = {quoted(name): f"s.set.{quoted(name)}" for name in self._set}
            merge = merge.whenMatchedUpdate(condition=f"s.op = 'update' AND NOT ({holds})", set=cast("Any", values))
        return staged_statement(self._context.session, merge.execute)

    def _same(self, key: str) -> list[Any]:
        return [column(name) == F.col(f"{key}.{quoted(name)}") for name in self._match]

    def _sql_same(self, key: str) -> str:
        return " AND ".join(f"t.{quoted(name)} = {key}.{quoted(name)}" for name in self._match)

    def _frame(self, rows: pa.Table) -> DataFrame:
        return self._context.session.createDataFrame(rows)


def _holds(assigned: DataType, names: Sequence[str], row: str, request: str) -> str:
    """Returns SQL that tests whether a row already has the values that a request sets."""
    assert isinstance(assigned, StructType)
    return " AND ".join(
        f"{comparable(f'{row}{quoted(name)}', kind)} <=> {comparable(f'{request}{quoted(name)}', kind)}"
        for name, kind in ((name, assigned[place].dataType) for place, name in enumerate(names))
    )


def _is_by_digest(kind: DataType) -> bool:
    return isinstance(kind, BY_DIGEST) and (not isinstance(kind, StringType) or kind == StringType())


def _of_keys(rows: pa.Table, keys: pa.ChunkedArray) -> pa.Table:
    return rows.filter(pc.is_in(rows["key_hash"], value_set=keys.combine_chunks()))


def target_schema(context: StreamContext) -> StructType | None:
    """Returns the target's columns; None if the table does not exist yet."""
    head = context.log.head(context.target)
    return None if head < 0 else context.log.metadata(context.target, head).schema


def locations(*tables: TableLocation) -> tuple[TableLocation, ...]:
    """Returns each location once, in order."""
    return tuple(dict.fromkeys(tables))
