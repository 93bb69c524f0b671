"""Manual operations on stored requests: list them, retry a dead request, drop one, send one again corrected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from lakegate.config import Mutate, StreamSpec
from lakegate.delta.idempotent_writes import conflicts, tokened
from lakegate.errors import InvalidRequest
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.quoting import quoted
from lakegate.spark.fitting import fitted
from lakegate.streams.interfaces import SETTLE, BatchTurn, StreamContext, noted
from lakegate.streams.requests.columns import digest, fields_of
from lakegate.streams.requests.rules import State
from lakegate.streams.requests.table import STATES, RequestTable
from lakegate.streams.requests.watermark import NEVER, Progress

STUCK = ("dead", "stored")
"""States of requests that change only by a person, or by the next batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    """A request as `lakegate requests list` shows it: without its values."""

    request_id: str
    state: State
    reason: str | None
    op: str
    source_position: str | None
    batch: int
    first_seen_ms: int
    matched_rows: int


def list_requests(
    context: StreamContext, spec: StreamSpec, states: Sequence[str] = STATES, *, rows_max: int = 1000
) -> list[StoredRequest]:
    """Returns the newest requests in these states, newest first; an empty list if nothing was stored yet."""
    table = RequestTable(context.session, context.log, context.requests_of(spec))
    rows = table.rows(states)
    if rows is None:
        return []
    names = list(StoredRequest.__dataclass_fields__)
    newest = rows.orderBy(F.desc("first_seen_ms"), F.desc("batch"), F.desc("ordinal")).limit(rows_max)
    return [StoredRequest(**row.asDict()) for row in newest.select(*names).collect()]


def replay_requests(turn: BatchTurn, context: StreamContext, spec: StreamSpec, ids: Sequence[str]) -> int:
    """Sets dead requests to waiting again, from now on and for all rows. Returns their number.

    Raises:
        InvalidRequest: one of them is not dead; or the stream's requests are not retried, because a request that could not be
            read before could not be read now either. Nothing was changed.
    """
    if not isinstance(spec.kind, Mutate) or spec.kind.applies_to != "arrived":
        raise InvalidRequest(
            f"dead requests of {spec.name} have no key or no sequence, so another try would end the same; nothing was changed",
            advice="Correct the request in its source, or take it out with: lakegate requests drop",
        )
    now_ms = context.clock.wall_ms()
    last = Progress(context, spec).last() or NEVER
    values = {"state": "'waiting'", "reason": "'replayed'", "first_seen_ms": f"{now_ms}L"}
    # The sweep that follows tests all rows, and counts the kept requests again.
    again = replace(last, tested=Version(-1), kept=last.kept + len(ids), oldest_ms=last.oldest_ms or now_ms)
    facts = again.facts()
    return _change(turn, context, spec, ids, "replay", values, facts)


def drop_requests(turn: BatchTurn, context: StreamContext, spec: StreamSpec, ids: Sequence[str], *, reason: str) -> int:
    """Removes requests that are dead, or stored and not applied; the reason stays in the table's history. Returns their number.

    Raises:
        InvalidRequest: one of them is in neither state; nothing was changed.
    """
    facts = {"reason": reason, "dropped": list(ids)}
    return _change(turn, context, spec, ids, "drop", None, facts, states=STUCK)


def resend_requests(
    turn: BatchTurn, context: StreamContext, spec: StreamSpec, ids: Sequence[str], corrections: Mapping[str, str]
) -> int:
    """Stores stuck requests again, corrected; the stream's next batch applies them as its own. Returns their number.

    Args:
        turn: A turn that has begun a batch.
        context: The stream's context.
        spec: The stream.
        ids: Ids of requests that are dead, or stored and not applied.
        corrections: Column → value, as text: columns of `match` and `set`, and `sequence_by`.

    Raises:
        InvalidRequest: one of them is in neither state; or a correction names no column of the requests, or does not fit its
            column. Nothing was changed.
    """
    rows = RequestTable(context.session, context.log, context.requests_of(spec)).rows(STUCK)
    if rows is None:
        return 0
    parts = {name: rows.schema[name].dataType for name in ("key", "set")}
    columns: dict[str, Column] = {}
    left = dict(corrections)
    for part, kind in parts.items():
        assert isinstance(kind, StructType)
        given = {name.lower(): name for name in left}
        fields = [
            _corrected(context, field, left.pop(given[field.name.lower()])).alias(field.name)
            if field.name.lower() in given
            else F.col(f"{part}.{quoted(field.name)}")
            for field in kind.fields
        ]
        columns[part] = F.struct(*fields)
    if "sequence_by" in left:
        columns["seq"] = _corrected(context, rows.schema["seq"], left.pop("sequence_by"))
    if left:
        known = [name for kind in parts.values() if isinstance(kind, StructType) for name in kind.names]
        raise InvalidRequest(
            f"the requests of {spec.name} have no column {next(iter(left))}; nothing was changed",
            advice=f"The columns are: {', '.join(dict.fromkeys(known))}, and sequence_by",
        )
    fixed = rows.where(F.col("request_id").isin(list(ids))).withColumns(columns)
    fixed = fixed.withColumn("key_hash", digest(fields_of(fixed.schema["key"].dataType, "key")))
    fixed = context.session.createDataFrame(fixed.select("request_id", "key", "set", "key_hash", "seq").toArrow())
    now_ms = context.clock.wall_ms()
    values = {name: f"s.{name}" for name in ("key", "`set`", "key_hash", "seq")}
    values |= {"state": "'stored'", "reason": "NULL", "first_seen_ms": f"{now_ms}L", "matched_rows": "0L"}
    return _change(turn, context, spec, ids, "retry", values, {}, states=STUCK, source=fixed)


def _corrected(context: StreamContext, field: StructField, text: str) -> Column:
    """Returns a value given as text, cast to the column's type; `null` is NULL.

    Raises:
        InvalidRequest: the value does not fit.
    """
    if text == "null":
        return F.lit(None).cast(field.dataType)
    plain = StructField(field.name, field.dataType, True, field.metadata)
    value, misfit = fitted(F.lit(text), StringType(), plain)
    found = context.session.range(1).select(misfit.alias("misfit")).first()
    if found is not None and found["misfit"] is not None:
        raise InvalidRequest(f"a corrected value {found['misfit']}; nothing was changed")
    return value


def _change(
    turn: BatchTurn,
    context: StreamContext,
    spec: StreamSpec,
    ids: Sequence[str],
    name: str,
    values: dict[str, str] | None,
    facts: Mapping[str, object],
    *,
    states: Sequence[str] = ("dead",),
    source: DataFrame | None = None,
) -> int:
    location = context.requests_of(spec)
    turn.enter(location)
    table = RequestTable(context.session, context.log, location)
    wanted = context.session.createDataFrame([(id_,) for id_ in dict.fromkeys(ids)], "request_id string")
    dead = table.rows(states)
    missing = wanted if dead is None else wanted.join(dead, "request_id", "left_anti")
    absent = [row["request_id"] for row in missing.collect()]
    if absent:
        raise InvalidRequest(
            f"not {' or '.join(states)} requests of {spec.name}: {', '.join(absent[:5])}; nothing was changed",
            advice=f"See them with: lakegate requests list {spec.name} --state dead",
        )

    def statement(token: WriteToken) -> None:
        listed = ", ".join(f"'{state}'" for state in states)
        condition = f"t.request_id = s.request_id AND t.state IN ({listed})"
        rows = wanted if source is None else source
        merge: Any = DeltaTable.forPath(context.session, location).alias("t").merge(rows.alias("s"), condition)
        merge = merge.whenMatchedDelete() if values is None else merge.whenMatchedUpdate(set=values)
        with tokened(context.session, noted(token, stream=spec.name, **facts)), conflicts():
            merge.execute()

    is_new = turn.write(location, step=SETTLE, name=name, statement=statement)
    return wanted.count() if is_new else 0
