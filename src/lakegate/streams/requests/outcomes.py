"""Records the outcomes of requests in one commit, together with the version up to which the stream was tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakegate.delta.idempotent_writes import append, conflicts, confs, tokened
from lakegate.ids import Version
from lakegate.ports import WriteToken
from lakegate.rows import few_rows
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.delta_table import DeltaTable
from lakegate.rows.statement import Dml
from lakegate.rows.thread_scope import staged_statement
from lakegate.streams.interfaces import SETTLE, BatchTurn, StreamContext, noted
from lakegate.streams.requests.resolver import Held
from lakegate.streams.requests.rules import Path, Settled
from lakegate.streams.requests.table import RequestTable
from lakegate.streams.requests.watermark import Tested

ANY_ROWS_CONF = "spark.databricks.delta.replaceWhere.constraintCheck.enabled"
"""Off: replaced rows may be written to another partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcomes:
    """The outcomes of requests."""

    settled: Mapping[str, Settled]
    replaced: Mapping[str, Settled] = field(default_factory=dict)
    """Outcomes of standing requests that newer requests replace."""
    effects: Mapping[str, Path] = field(default_factory=dict)
    tested: Tested
    version: Version
    """Version of the target on which the requests were tested."""

    @property
    def ids(self) -> list[str]:
        """Ids of all requests that change."""
        return list(dict.fromkeys([*self.settled, *self.replaced, *self.effects]))


class Settling:
    """The step `settle` of one stream."""

    def __init__(self, context: StreamContext, requests: RequestTable) -> None:
        self._context, self._requests = context, requests

    def stage(self, held: Held, outcome: RequestOutcomes, stored: DataFrame) -> Staged | None:
        """Writes the files of an expected outcome in advance; `write` commits them.

        Args:
            held: The requests.
            outcome: The expected outcome.
            stored: All stored requests.
        """
        if not outcome.ids or self._states(held, outcome) != ["stored"]:
            return None
        dml = self._rewriting(stored, self._source(held, outcome), _values(outcome))
        return publisher(self._context.session).stage(dml)

    def write(self, turn: BatchTurn, held: Held, outcome: RequestOutcomes, staged: Staged | None = None) -> None:
        """Records the outcome of the requests, in one commit with the version up to which the stream was tested.

        Args:
            turn: The turn.
            held: The requests.
            outcome: The outcome.
            staged: The same outcome, written in advance.
        """
        session, location = self._context.session, self._requests.location
        states = self._states(held, outcome)

        def statement(token: WriteToken) -> None:
            token = noted(token, **outcome.tested.facts())
            if staged is not None:
                publisher(session).finish(staged, token)
                return
            if not outcome.ids:
                append(self._stored().limit(0), location, token)
                return
            source, values = self._source(held, outcome), _values(outcome)
            with conflicts():
                if states == ["stored"] and not few_rows.is_for_driver(session, len(outcome.ids)):
                    with tokened(session, token):
                        publisher(session).publish(self._rewriting(self._stored(), source, values), token)
                    return
                listed = ", ".join(f"'{state}'" for state in states)
                condition = f"t.request_id = s.request_id AND t.state IN ({listed})"
                merge: Any = DeltaTable.forPath(session, location).alias("t").merge(source.alias("s"), condition)
                merge = merge.whenMatchedUpdate(set=cast("Any", values))
                publisher(session).finish(staged_statement(session, merge.execute), token)

        turn.write(location, step=SETTLE, name="settle", statement=statement)

    def _stored(self) -> DataFrame:
        return self._requests.raw().where(F.col("state") == "stored")

    def _states(self, held: Held, outcome: RequestOutcomes) -> list[str]:
        """Returns the states that these requests may have now; the rest of the table is not read."""
        of_held = held.rows["state"].to_pylist() if held.requests else []
        return sorted({*of_held, *(["applied"] if outcome.replaced or outcome.effects else [])})

    def _source(self, held: Held, outcome: RequestOutcomes) -> DataFrame:
        """Returns the changes of each request."""
        ids, settled = outcome.ids, outcome.settled
        outcomes = {**settled, **outcome.replaced}
        changes = pa.table(
            {
                "request_id": pa.array(ids, pa.string()),
                "state": pa.array([outcomes[i].state if i in outcomes else None for i in ids], pa.string()),
                "reason": pa.array([outcomes[i].reason if i in outcomes else None for i in ids], pa.string()),
                "matched_rows": pa.array([settled[i].matched_rows if i in settled else None for i in ids], pa.int64()),
            }
        )
        if not outcome.effects:
            return self._context.session.createDataFrame(changes)
        changes = changes.append_column("effect", _effects(held, outcome.effects, ids))
        stored = self._requests.raw().schema["effect"].dataType
        source = self._context.session.createDataFrame(changes)
        return source.withColumn("effect", F.col("effect").cast(stored))

    def _rewriting(self, stored: DataFrame, source: DataFrame, values: Mapping[str, str]) -> Dml:
        """Returns a statement that moves all stored requests to their new states in one job, without the search of a MERGE.

        Stored requests are a separate partition that only this stream's batches write. It is small, and empty after the step.
        """
        joined = stored.alias("t").join(
            F.broadcast(source.alias("s")), F.col("t.request_id") == F.col("s.request_id"), "left"
        )
        is_settled = F.col("s.request_id").isNotNull()
        rows = joined.select(
            *[
                F.when(is_settled, F.expr(values[name])).otherwise(F.col(f"t.{name}")).alias(name)
                if name in values
                else F.col(f"t.{name}")
                for name in stored.columns
            ]
        )
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", "state = 'stored'")

        session, location = self._context.session, self._requests.location

        def execute() -> None:
            with confs(session, {ANY_ROWS_CONF: "false"}):
                writer.save(location)

        return Dml(session=session, table=location, operation=Operation.OVERWRITE, execute=execute)


def _effects(held: Held, effects: Mapping[str, Path], ids: Sequence[str]) -> pa.Array:
    """Returns the `effect` of each request; null for a request without one."""
    lasts = [path.last for path in effects.values()]
    ends = [None if last.op == "delete" else last.moves_to for last in lasts]
    rows = held.taken([last.id for last in lasts])
    columns = [rows["op"].combine_chunks(), rows["set"].combine_chunks(), pa.array(ends, pa.string())]
    place = {id_: number for number, id_ in enumerate(effects)}
    found = pa.StructArray.from_arrays(columns, names=["op", "set", "ends_at"])
    return found.take(pa.array([place.get(id_) for id_ in ids], pa.int64()))


def _values(outcome: RequestOutcomes) -> dict[str, str]:
    """Returns column → SQL of the written value, where `s` is a request's change and `t` its row."""
    values = {
        "state": "coalesce(s.state, t.state)",
        "reason": "CASE WHEN s.state IS NULL THEN t.reason ELSE s.reason END",
        "matched_rows": "coalesce(s.matched_rows, t.matched_rows)",
        "tested_version": f"{outcome.version}",
    }
    return {**values, "effect": "coalesce(s.effect, t.effect)"} if outcome.effects else values
