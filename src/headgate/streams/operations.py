"""What a person does with stored requests: look at them, give a dead one another chance, take one out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import functions as F

from headgate.core.ids import Version
from headgate.core.requests.fold import State
from headgate.core.spec import Mutate, StreamSpec
from headgate.delta.requests import STATES, RequestTable
from headgate.delta.statements import conflicts, tokened
from headgate.errors import InvalidRequest
from headgate.ports import WriteToken
from headgate.streams.steps import SETTLE, BatchTurn, StreamContext
from headgate.streams.target import noted
from headgate.streams.tested import NEVER, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    """A request as `headgate requests list` shows it: never its values."""

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
    """The newest requests in these states, newest first; none where nothing was stored yet."""
    table = RequestTable(context.session, context.log, context.requests_of(spec))
    rows = table.rows(states)
    if rows is None:
        return []
    names = list(StoredRequest.__dataclass_fields__)
    newest = rows.orderBy(F.desc("first_seen_ms"), F.desc("batch"), F.desc("ordinal")).limit(rows_max)
    return [StoredRequest(**row.asDict()) for row in newest.select(*names).collect()]


def replay_requests(turn: BatchTurn, context: StreamContext, spec: StreamSpec, ids: Sequence[str]) -> int:
    """Lets dead requests wait again, from now on and for all rows; how many.

    Raises:
        InvalidRequest: one of them is not dead; or requests of this stream are not retried, because those that could not
            be read would not be read now either. Nothing was changed.
    """
    if not isinstance(spec.kind, Mutate) or spec.kind.applies_to != "arrived":
        raise InvalidRequest(
            f"dead requests of {spec.name} have no key or no sequence, so another try would end the same; nothing was changed",
            advice="Correct the request in its source, or take it out with: headgate requests drop",
        )
    now_ms = context.clock.wall_ms()
    last = Progress(context, spec).last() or NEVER
    values = {"state": "'waiting'", "reason": "'replayed'", "first_seen_ms": f"{now_ms}L"}
    # The sweep that this brings about tests all rows, and counts anew.
    again = replace(last, tested=Version(-1), kept=last.kept + len(ids), oldest_ms=last.oldest_ms or now_ms)
    facts = again.facts()
    return _change(turn, context, spec, ids, "replay", values, facts)


def drop_requests(turn: BatchTurn, context: StreamContext, spec: StreamSpec, ids: Sequence[str], *, reason: str) -> int:
    """Takes dead requests out of the table; the reason stays in its history. How many.

    Raises:
        InvalidRequest: one of them is not dead; nothing was changed.
    """
    return _change(turn, context, spec, ids, "drop", None, {"reason": reason, "dropped": list(ids)})


def _change(
    turn: BatchTurn,
    context: StreamContext,
    spec: StreamSpec,
    ids: Sequence[str],
    name: str,
    values: dict[str, str] | None,
    facts: Mapping[str, object],
) -> int:
    location = context.requests_of(spec)
    turn.enter(location)
    table = RequestTable(context.session, context.log, location)
    wanted = context.session.createDataFrame([(id_,) for id_ in dict.fromkeys(ids)], "request_id string")
    dead = table.rows(["dead"])
    missing = wanted if dead is None else wanted.join(dead, "request_id", "left_anti")
    absent = [row["request_id"] for row in missing.collect()]
    if absent:
        raise InvalidRequest(
            f"not dead requests of {spec.name}: {', '.join(absent[:5])}; nothing was changed",
            advice=f"See them with: headgate requests list {spec.name} --state dead",
        )

    def statement(token: WriteToken) -> None:
        condition = "t.request_id = s.request_id AND t.state = 'dead'"
        merge: Any = DeltaTable.forPath(context.session, location).alias("t").merge(wanted.alias("s"), condition)
        merge = merge.whenMatchedDelete() if values is None else merge.whenMatchedUpdate(set=values)
        with tokened(context.session, noted(token, stream=spec.name, **facts)), conflicts():
            merge.execute()

    is_new = turn.write(location, step=SETTLE, name=name, statement=statement)
    return wanted.count() if is_new else 0
