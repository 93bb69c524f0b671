"""A batch that was applied and whose outcome was not recorded: the process ended. Its requests are active for other streams."""

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
    """What rows that come now meet of a `mutate` stream's unsettled batch, after what it has settled.

    Returns:
        `key`, `op`, `set`, one row a key; None where there is none.
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
    # What stands has no say in what becomes of new ones, and of a stream whose requests stand none wait.
    decided = reader.decide(own, reader.kept(own.keys, erasures, has_kept=False))
    if meaning.moves_rows:
        return context.session.createDataFrame(decided.rules)
    last = last_of_key(decided.admitted.in_order)
    return context.session.createDataFrame(
        own.taken([request.id for request in last.values()]).select(["key", "op", "set"])
    )
