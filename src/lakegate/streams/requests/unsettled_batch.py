"""A batch that was applied without a recorded outcome, as the process ended. Its requests are active for other streams."""

from __future__ import annotations

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lakegate.config import Mutate, StreamSpec
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.requests.erased_keys import Erasures
from lakegate.streams.requests.resolver import RequestReader, meaning_of
from lakegate.streams.requests.rules import last_of_key
from lakegate.streams.requests.table import RequestTable


def later_rules(context: StreamContext, stream: StreamSpec) -> DataFrame | None:
    """Returns the rules that a `mutate` stream's batch without recorded outcome imposes on new rows, after its standing ones.

    Returns:
        `key`, `op`, `set`, one row per key; None if there is no such batch.
    """
    kind = stream.kind
    assert isinstance(kind, Mutate), f"{stream.name} mutates nothing"
    table, meaning = RequestTable(context.session, context.log, context.requests_of(stream)), meaning_of(kind)
    reader = RequestReader(context, table, meaning, list(kind.set))
    erasures = Erasures(context, kind) if kind.set else None
    own = reader.read(table.rows(["stored"]), erasures)
    if not own.requests:
        return None
    if kind.stand_for_ms is not None:
        last_ms: int = pc.max(own.rows["first_seen_ms"]).as_py()
        if last_ms + kind.stand_for_ms <= context.clock.wall_ms():
            return None
    # Standing requests do not change what new ones do; a stream whose requests stand has no waiting ones.
    decided = reader.decide(own, reader.kept(own.keys, erasures, has_kept=False))
    if meaning.moves_rows:
        return context.session.createDataFrame(decided.rules)
    last = last_of_key(decided.admitted.in_order)
    return context.session.createDataFrame(
        own.taken([request.id for request in last.values()]).select(["key", "op", "set"])
    )
