"""`lakegate check` with Spark: reads schemas, resolves SQL against them, compares tables with the file.

Only the analysis of queries on no rows is executed; nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from lakegate.config import Append, Erase, Maintain, Mutate, StreamSpec, TableSpec
from lakegate.config.value_types import duration_text
from lakegate.delta import ownership
from lakegate.delta.jvm import JVM_ERRORS, Jvm, first_line
from lakegate.delta.table_log import DeltaTableLog, TableMetadata
from lakegate.errors import LakegateError
from lakegate.ids import TableLocation
from lakegate.ops.check import Places
from lakegate.ops.finding import Finding, of_error
from lakegate.spark.log_stores import log_store_of
from lakegate.spark.sources import schema_of
from lakegate.streams.expectations import faults_of
from lakegate.streams.maintenance import statements
from lakegate.streams.maintenance.purge import within_fault
from lakegate.streams.maintenance.stream import too_young
from lakegate.turns.protocol.fencing import PREFIX, lock_token


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """The known columns of a table: those of the existing table, otherwise those in `columns`."""

    schema: StructType | None
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    exists: bool
    is_clustered: bool


def table(
    spark: SparkSession,
    log: DeltaTableLog,
    spec: TableSpec,
    location: TableLocation,
    coordinator_id: str | None,
    coordinator: str | None,
    places: Places,
) -> tuple[KnownTable, list[Finding]]:
    """Returns a table's columns, and where the table differs from the file.

    Args:
        spark: A session with Delta.
        log: Tables' logs.
        spec: The table in the file.
        location: The path of the table.
        coordinator_id: The id of the store of turns; None if there is no store yet.
        coordinator: The address of that store, if known.
        places: The locations of keys in the file.
    """
    at = f"tables.{spec.name}"
    found: list[Finding] = []
    wanted = None
    if spec.columns is not None:
        wanted, found = _declared(spark, spec, places)
    nothing = KnownTable(
        schema=wanted,
        partition_columns=spec.partition_by,
        properties=spec.properties,
        exists=False,
        is_clustered=bool(spec.cluster_by),
    )
    try:
        tokens = log.read_tokens(location)
        if tokens.version < 0:
            return nothing, found
        metadata = log.metadata(location)
        ownership.refuse_forgetting(location, metadata.properties)
        note = ownership.read_governed(spark, location)
        if note is not None:
            store = log_store_of(spark, location)
            said = ownership.compare(
                location,
                note,
                spec.lock,
                coordinator_id,
                store.name,
                coordinator=coordinator,
                log_store_args=store.args,
            )
            if said is not None:
                found.append(Finding(level="note", where=places.of(f"{at}.lock"), what=said))
        else:
            found += _ungoverned(spec, set(tokens.tokens), places)
    except LakegateError as error:
        key = f"{at}.lock" if error.facts.get("wanted") else f"{at}.path"
        if error.facts.get("coordinator"):
            key = "coordinator.url"
        return nothing, [*found, *of_error(error, places.of(key))]
    found += _differences(spec, metadata, wanted, places)
    known = KnownTable(
        schema=metadata.schema,
        partition_columns=metadata.partition_columns,
        properties=metadata.properties,
        exists=True,
        is_clustered="clustering" in metadata.features,
    )
    return known, found


def _declared(spark: SparkSession, spec: TableSpec, places: Places) -> tuple[StructType | None, list[Finding]]:
    where = places.of(f"tables.{spec.name}.columns")
    jvm = Jvm(spark)
    try:
        with jvm.active():
            parser = jvm.jsession.sessionState().sqlParser()
            plan = parser.parsePlan(f"CREATE TABLE declared ({spec.columns}) USING delta")
            schema = StructType.fromJson(json.loads(jvm.char_as_string(plan.tableSchema())))
    except JVM_ERRORS as error:
        return None, [_fault(where, first_line(error), "Spark DDL")]
    names = {name.lower() for name in schema.names}
    missing = [
        (key, column)
        for key, columns in (("partition_by", spec.partition_by), ("cluster_by", spec.cluster_by))
        for column in columns
        if column.lower() not in names
    ]
    return schema, [
        _fault(places.of(f"tables.{spec.name}.{key}"), f"no column {column!r} in `columns`", ", ".join(schema.names))
        for key, column in missing
    ]


def _ungoverned(spec: TableSpec, tokens: set[str], places: Places) -> list[Finding]:
    others = {one for one in tokens if one.startswith(f"{PREFIX}lock/")} - {lock_token(spec.lock)}
    if others:
        other = min(others).removeprefix(f"{PREFIX}lock/")
        what = f"the table is written under the lock {other}, not {spec.lock}"
        return [_fault(places.of(f"tables.{spec.name}.lock"), what, "the same lock in every pipeline")]
    what = "the table exists and is not governed, so it does not name its lock to other pipelines"
    advice = f"lakegate adopt {spec.name}"
    return [Finding(level="note", where=places.of(f"tables.{spec.name}"), what=what, advice=advice)]


def _differences(spec: TableSpec, metadata: TableMetadata, wanted: StructType | None, places: Places) -> list[Finding]:
    """Returns the differences between the table and the file: reported, and never applied."""
    at = f"tables.{spec.name}"
    found = []
    for name, value in spec.properties.items():
        has = metadata.properties.get(name)
        if has != value:
            what = f"the table has {name}={has}, the file says {value}; nothing is changed by a run"
            advice = f"ALTER TABLE … SET TBLPROPERTIES ('{name}' = '{value}'), or correct the file"
            found.append(_warning(places.of(f"{at}.properties.{name}"), what, advice))
    if spec.partition_by and list(spec.partition_by) != list(metadata.partition_columns):
        has = ", ".join(metadata.partition_columns) or "nothing"
        what = f"the table is partitioned by {has}, the file says {', '.join(spec.partition_by)}; nothing is changed"
        found.append(_warning(places.of(f"{at}.partition_by"), what, "Correct the file, or rewrite the table"))
    if spec.cluster_by and "clustering" not in metadata.features:
        what = "the table is not clustered, and the file says cluster_by; nothing is changed"
        found.append(_warning(places.of(f"{at}.cluster_by"), what, "ALTER TABLE … CLUSTER BY, or correct the file"))
    if wanted is not None:
        there = {field.name.lower(): field.dataType for field in metadata.schema.fields}
        said = {field.name.lower(): field.dataType for field in wanted.fields}
        lacking = sorted(set(said) - set(there))
        others = sorted(name for name in set(said) & set(there) if said[name] != there[name])
        if lacking or others:
            text = "; ".join(
                part
                for part in (
                    f"the table has no {', '.join(lacking)}" if lacking else "",
                    f"other types: {', '.join(others)}" if others else "",
                )
                if part
            )
            found.append(
                _warning(places.of(f"{at}.columns"), f"{text}; nothing is changed by a run", "Correct the file")
            )
    return found


# ------------------------------------------------------------------------------------------------------------ streams


def stream(
    spark: SparkSession, spec: StreamSpec, known: KnownTable | None, places: Places
) -> tuple[StructType | None, list[Finding]]:
    """Returns the rows that a stream would append, if it appends, and the faults of its source and SQL."""
    at = f"streams.{spec.name}"
    if spec.source is None:
        return None, [] if known is None else _maintain(spark, spec, known, places)
    try:
        schema = schema_of(spark, spec.source)
        rows = spark.createDataFrame([], schema)
    except LakegateError as error:
        is_schema = bool(getattr(error, "faults", ()))
        return None, of_error(error, places.of(f"{at}.source.{'schema' if is_schema else 'files'}"))
    unmet = [
        _fault(places.of(f"{at}.expect.{name}.where"), what, f"a condition over {', '.join(rows.columns)}")
        for name, what in faults_of(rows, spec.expect)
    ]
    match spec.kind:
        case Append():
            appended, found = _append(spec.kind, rows, known, at, places)
            return appended, [*unmet, *found]
        case Mutate() | Erase():
            found = [*unmet, *_requests(spec.kind, rows, known, at, places)]
            return None, found if known is None else [*found, *_physical(spark, spec, known, places)]
        case Maintain():
            raise AssertionError("a stream that maintains has no source")


def _maintain(spark: SparkSession, spec: StreamSpec, known: KnownTable, places: Places) -> list[Finding]:
    kind, at = spec.kind, f"streams.{spec.name}.maintain"
    assert isinstance(kind, Maintain), "only what maintains has no source"
    where = places.of(f"{at}.zorder_by")
    found = []
    partitions = {column.lower() for column in known.partition_columns}
    for column in kind.zorder_by:
        if known.schema is not None and column.lower() not in {name.lower() for name in known.schema.names}:
            found.append(_fault(where, f"the table has no column {column!r}", _names(known.schema)))
        elif column.lower() in partitions:
            found.append(_fault(where, f"the table is partitioned by {column!r}", "other columns"))
    if kind.zorder_by and known.is_clustered:
        found.append(_fault(where, "the table is clustered, which orders its rows already", "it to be left out"))
    if kind.vacuum_older_than_ms is not None and statements.is_retention_checked(spark):
        kept_ms = statements.retention_ms(spark, known.properties)
        if kind.vacuum_older_than_ms < kept_ms:
            what = too_young(kind.vacuum_older_than_ms, kept_ms)
            found.append(_fault(places.of(f"{at}.vacuum_older_than"), what, f"{duration_text(kept_ms)} or more"))
    return found


def _physical(spark: SparkSession, spec: StreamSpec, known: KnownTable, places: Places) -> list[Finding]:
    within_ms = spec.kind.physical_within_ms if isinstance(spec.kind, Erase) else None
    if within_ms is None:
        return []
    fault = within_fault(spec, within_ms, statements.retention_ms(spark, known.properties))
    return [] if fault is None else [_fault(places.of(fault.where), fault.what, fault.expected)]


def _append(
    kind: Append, rows: DataFrame, known: KnownTable | None, at: str, places: Places
) -> tuple[StructType | None, list[Finding]]:
    found = []
    for name, sql in kind.columns.items():
        where = places.of(f"{at}.append.columns.{name}")
        resolved = _resolved(rows, sql, where)
        if isinstance(resolved, Finding):
            found.append(resolved)
            rows = rows.withColumn(name, F.lit(None))
        else:
            rows = rows.withColumn(name, F.expr(sql))
    names = {name.lower() for name in rows.columns}
    found += [
        _fault(places.of(f"{at}.append.key"), f"no column {column!r} in the record", ", ".join(rows.columns))
        for column in kind.key
        if column.lower() not in names
    ]
    if known is not None and known.schema is not None:
        has = {field.name.lower() for field in known.schema.fields}
        found += [
            _fault(places.of(f"{at}.append"), f"no value for {field.name}, which is NOT NULL", "a column of the record")
            for field in known.schema.fields
            if not field.nullable and field.name.lower() not in names
        ]
        found += [
            _fault(places.of(f"{at}.append.columns.{name}"), f"the table has no column {name!r}", _names(known.schema))
            for name in kind.columns
            if name.lower() not in has
        ]
    return rows.schema, found


def _requests(
    kind: Mutate | Erase, rows: DataFrame, known: KnownTable | None, at: str, places: Places
) -> list[Finding]:
    name = "mutate" if isinstance(kind, Mutate) else "erase"
    columns = {"match": kind.match, **({"set": kind.set} if isinstance(kind, Mutate) else {})}
    found = []
    for key, values in columns.items():
        for column, sql in values.items():
            where = places.of(f"{at}.{name}.{key}.{column}")
            resolved = _resolved(rows, sql, where)
            if isinstance(resolved, Finding):
                found.append(resolved)
            if known is not None and known.schema is not None:
                if column.lower() not in {field.lower() for field in known.schema.names}:
                    found.append(_fault(where, f"the table has no column {column!r}", _names(known.schema)))
    conditions = {"delete_when": kind.delete_when} if isinstance(kind, Mutate) else {"lift_when": kind.lift_when}
    for key, condition in conditions.items():
        if condition is not None:
            where = places.of(f"{at}.{name}.{key}")
            resolved = _resolved(rows, condition, where)
            if isinstance(resolved, Finding):
                found.append(resolved)
            elif not isinstance(resolved.schema.fields[0].dataType, BooleanType):
                found.append(_fault(where, f"{condition!r} is no condition", "SQL that is true or false"))
    if isinstance(kind, Mutate) and kind.sequence_by is not None:
        resolved = _resolved(rows, kind.sequence_by, places.of(f"{at}.mutate.sequence_by"))
        found += [resolved] if isinstance(resolved, Finding) else []
    return found


def _resolved(rows: DataFrame, sql: str, where: str) -> DataFrame | Finding:
    """Resolves SQL over these rows to a frame of one column, or returns why that fails."""
    try:
        return rows.select(F.expr(sql))
    except JVM_ERRORS as error:
        return _fault(where, f"{sql!r}: {first_line(error)}", f"SQL over {', '.join(rows.columns)}")


def _names(schema: StructType) -> str:
    return ", ".join(schema.names)


def _fault(where: str, what: str, expected: str) -> Finding:
    return Finding(level="fault", where=where, what=f"{what}; expected {expected}", exit_code=2)


def _warning(where: str, what: str, advice: str) -> Finding:
    return Finding(level="warning", where=where, what=what, advice=advice)
