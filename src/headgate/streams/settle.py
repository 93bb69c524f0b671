"""Writes down what became of requests: one commit, which also says how far the stream has been tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headgate.core.requests.fold import Path, Settled
from headgate.core.rows.statement import Operation
from headgate.delta.requests import RequestTable
from headgate.delta.statements import append, conflicts, confs, tokened
from headgate.ports import WriteToken
from headgate.streams.held import Held
from headgate.streams.steps import SETTLE, BatchTurn, StreamContext
from headgate.streams.target import Met, noted
from headgate.streams.tested import Tested
from headgate.tables.running import put

ANY_ROWS_CONF = "spark.databricks.delta.replaceWhere.constraintCheck.enabled"
"""Off: what is written in place of some rows need not be where they were."""


class Settling:
    """The step `settle` of one stream."""

    def __init__(self, context: StreamContext, requests: RequestTable) -> None:
        self._context, self._requests = context, requests

    def write(
        self,
        turn: BatchTurn,
        held: Held,
        settled: Mapping[str, Settled],
        replaced: Mapping[str, Settled],
        effects: Mapping[str, Path],
        tested: Tested,
        met: Met | None,
    ) -> None:
        """Writes down what became of the requests, in one commit that also says how far the stream has been tested."""
        version = met.version if met else tested.tested
        outcomes = {**settled, **replaced}
        ids = list(dict.fromkeys([*outcomes, *effects]))
        changes = pa.table(
            {
                "request_id": pa.array(ids, pa.string()),
                "state": pa.array([outcomes[i].state if i in outcomes else None for i in ids], pa.string()),
                "reason": pa.array([outcomes[i].reason if i in outcomes else None for i in ids], pa.string()),
                "matched_rows": pa.array([settled[i].matched_rows if i in settled else None for i in ids], pa.int64()),
            }
        )
        session, location = self._context.session, self._requests.location
        # States that these requests can be in now: the rest of the table is not looked at.
        of_held = held.rows["state"].to_pylist() if held.requests else []
        states = sorted({*of_held, *(["applied"] if replaced or effects else [])})

        def statement(token: WriteToken) -> None:
            token = noted(token, **tested.facts())
            if not ids:
                empty = self._requests.rows(["stored"])
                assert empty is not None
                append(empty.limit(0), location, token)
                return
            source = session.createDataFrame(changes)
            values = {
                "state": "coalesce(s.state, t.state)",
                "reason": "CASE WHEN s.state IS NULL THEN t.reason ELSE s.reason END",
                "matched_rows": "coalesce(s.matched_rows, t.matched_rows)",
                "tested_version": f"{version}",
            }
            if effects:
                source = source.join(self._effect_rows(held, effects), "request_id", "left")
                values["effect"] = "coalesce(s.effect, t.effect)"
            with tokened(session, token), conflicts():
                if states == ["stored"]:
                    self._rewrite_stored(source, values, token)
                    return
                listed = ", ".join(f"'{state}'" for state in states)
                table = DeltaTable.forPath(session, location).alias("t")
                condition = f"t.request_id = s.request_id AND t.state IN ({listed})"
                merge: Any = table.merge(source.alias("s"), condition).whenMatchedUpdate(set=cast("Any", values))
                merge.execute()

        turn.write(location, step=SETTLE, name="settle", statement=statement)

    def _rewrite_stored(self, source: DataFrame, values: Mapping[str, str], token: WriteToken) -> None:
        """Write all stored requests to where they belong now: one job, where MERGE looks for the rows of the batch first.

        They are a partition of their own, which only this stream's batches write: small, and gone when they are settled.
        """
        stored = self._requests.rows(["stored"])
        assert stored is not None
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
        with confs(session, {ANY_ROWS_CONF: "false"}):
            put(session, location, Operation.OVERWRITE, lambda: writer.save(location), token)

    def _effect_rows(self, held: Held, effects: Mapping[str, Path]) -> DataFrame:
        """`request_id` and `effect`."""
        lasts = [path.last for path in effects.values()]
        ends = [None if last.op == "delete" else last.moves_to for last in lasts]
        rows = held.taken([last.id for last in lasts]).select(["op", "set"])
        rows = rows.append_column("request_id", pa.array(list(effects), pa.string()))
        rows = rows.append_column("ends_at", pa.array(ends, pa.string()))
        frame = self._context.session.createDataFrame(rows)
        return frame.select("request_id", F.struct("op", "set", "ends_at").alias("effect"))
