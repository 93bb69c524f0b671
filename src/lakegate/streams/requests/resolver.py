"""Reads the requests that concern a batch (its own, and waiting or standing ones for its keys), and decides what they do.

The requests are on the driver, as Arrow tables and as `Request` objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DoubleType, FloatType, TimestampNTZType, TimestampType

from lakegate.config import Erase, Mutate
from lakegate.rows import few_rows
from lakegate.spark.threads import in_parallel
from lakegate.streams.interfaces import StreamContext
from lakegate.streams.requests.columns import fields_of, moved_key
from lakegate.streams.requests.erased_keys import Erasures
from lakegate.streams.requests.rules import Admitted, Meaning, Orderable, Path, Request, admit, compose
from lakegate.streams.requests.table import RequestTable, with_column_names

NOWHERE = ""
"""The key of rows in which a match column was set to NULL: no request matches them any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Requests on the driver, as `Request` objects and as rows."""

    requests: tuple[Request, ...]
    rows: pa.Table
    index: Mapping[str, int]
    """Request id → row."""

    @property
    def keys(self) -> list[str]:
        """Returns each key once."""
        return sorted({request.key for request in self.requests if request.key is not None})

    def taken(self, ids: Sequence[str]) -> pa.Table:
        """Returns the rows in the order of `ids`."""
        return self.rows.take(pa.array([self.index[id_] for id_ in ids], pa.int64()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRequests:
    """The standing requests for the keys of a batch, before the batch."""

    by_key: Mapping[str, str]
    """Key → id of its standing request."""
    ends: Mapping[str, str]
    """Where keys move: id of the first request of a standing path → the key at which the path ends."""


NOBODY = Held(requests=(), rows=pa.table({}), index={})
NOTHING_STANDS = StandingRequests(by_key={}, ends={})
NOTHING_REFUSED: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRequests:
    """The requests of earlier batches for the keys of a batch."""

    highest: Mapping[str, Orderable]
    """Key → highest sequence."""
    waiting: Held
    standing: StandingRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The decided effect of a batch's requests, together with those kept for its keys."""

    own: Held
    kept: KeptRequests
    everything: Held
    """The waiting requests, and those of the batch."""
    admitted: Admitted
    paths: Mapping[str, Path]
    """Key → the change of its rows."""
    rules: pa.Table
    """`key_hash`, `key`, `op`, `set` of the final change of each key's rows, where there is one."""
    steps: pa.Table
    """`key_hash`, `key`, `set` of every update on the path of each key."""


def meaning_of(kind: Mutate | Erase) -> Meaning:
    """Returns how the requests of a stream are read."""
    if isinstance(kind, Erase):
        return Meaning(is_standing=True, moves_rows=False, has_sequence=False)
    return Meaning(
        is_standing=kind.applies_to == "arrived_and_later",
        moves_rows=kind.moves_rows,
        has_sequence=kind.sequence_by is not None,
    )


class RequestReader:
    """Reads the requests of one stream, and decides on them.

    Args:
        context: The stream's context.
        requests: The stream's request table.
        meaning: How its requests are read.
        assigned: Columns that its requests set.
    """

    def __init__(
        self, context: StreamContext, requests: RequestTable, meaning: Meaning, assigned: Sequence[str]
    ) -> None:
        self._context, self._requests, self._meaning, self._set = context, requests, meaning, assigned

    def kept(self, keys: Sequence[str], erasures: Erasures | None, *, has_kept: bool) -> KeptRequests:
        """Reads the requests kept for these keys.

        Args:
            keys: Keys of a batch.
            erasures: Erased keys to which rows must not be moved.
            has_kept: Whether there may be waiting or standing requests.
        """
        with in_parallel(self._context.session) as begin:
            highest = begin(lambda: self._highest(keys))
            waiting = self._waiting(keys, erasures) if has_kept else NOBODY
            standing = self._standing(keys, erasures) if has_kept else NOTHING_STANDS
        return KeptRequests(highest=highest.result(), waiting=waiting, standing=standing)

    @property
    def is_kept_despite_erasures(self) -> bool:
        """Returns True if erasures have no effect on the kept requests."""
        return self._meaning.is_standing and not self._meaning.moves_rows

    def decide(self, own: Held, kept: KeptRequests, refused: Mapping[str, str] = NOTHING_REFUSED) -> Decided:
        """Decides the effect of a batch, together with the requests kept for its keys.

        Args:
            own: The batch's requests.
            kept: The requests kept for their keys.
            refused: Request id → the reason why the table refuses its values; these requests have no effect.
        """
        admitted = admit(own.requests, kept.highest, has_sequence=self._meaning.has_sequence)
        if refused:
            in_order = tuple(one for one in admitted.in_order if one.id not in refused)
            admitted = replace(admitted, in_order=in_order, dead={**admitted.dead, **refused})
            waiting = tuple(one for one in kept.waiting.requests if one.id not in refused)
            # The rows stay: the outcome of refused requests is recorded, too.
            kept = replace(kept, waiting=replace(kept.waiting, requests=waiting))
        everything = _together(kept.waiting, own)
        paths = compose([*kept.waiting.requests, *admitted.in_order])
        return Decided(
            own=own,
            kept=kept,
            everything=everything,
            admitted=admitted,
            paths=paths,
            rules=self.rules(everything, paths),
            steps=steps_of(everything, paths),
        )

    def rules(self, held: Held, paths: Mapping[str, Path]) -> pa.Table:
        """See `Decided.rules`."""
        keys = [key for key, path in paths.items() if path.last.deletes or (path.last.op == "update" and self._set)]
        ops = ["delete" if paths[key].last.deletes else "update" for key in keys]
        return pa.table(
            {
                "key_hash": pa.array(keys, pa.string()),
                "key": held.taken([paths[key].first.id for key in keys])["key"],
                "op": pa.array(ops, pa.string()),
                "set": held.taken([paths[key].last.id for key in keys])["set"],
            }
        )

    def read(self, rows: DataFrame | None, erasures: Erasures | None) -> Held:
        """Reads requests to the driver, in order."""
        if rows is None:
            return NOBODY
        rows = with_column_names(few_rows.local(rows))
        if erasures is not None:
            rows = erasures.with_doom(rows)
        else:
            rows = rows.withColumn("is_doomed", F.lit(False))
        moves_to: Column = F.lit(None).cast("string")
        if self._meaning.moves_rows:
            schema = rows.schema
            moves_to = moved_key(fields_of(schema["key"].dataType, "key"), fields_of(schema["set"].dataType, "set"))
        names = ["request_id", "key_hash", "key", "set", "op", "is_doomed", "first_seen_ms", "tested_version", "state"]
        order = ["first_seen_ms", "batch", "ordinal"]
        sequence = _orderable(rows.schema["seq"].dataType).alias("seq")
        found = rows.select(*names, "batch", "ordinal", sequence, moves_to.alias("moves_to"))
        found = few_rows.to_arrow(found).sort_by([(name, "ascending") for name in order])
        ids = found["request_id"].to_pylist()
        requests = tuple(
            Request(id=id_, key=key, op=op, sequence=seq, moves_to=self._end(op, to), is_doomed=doomed)
            for id_, key, op, seq, to, doomed in zip(
                ids,
                *(found[name].to_pylist() for name in ("key_hash", "op", "seq", "moves_to", "is_doomed")),
                strict=True,
            )
        )
        return Held(requests=requests, rows=found, index={id_: i for i, id_ in enumerate(ids)})

    def _end(self, op: str, moves_to: str | None) -> str | None:
        if not self._meaning.moves_rows or op != "update":
            return None
        return NOWHERE if moves_to is None else moves_to

    def _highest(self, keys: Sequence[str]) -> dict[str, Orderable]:
        """Returns key → highest sequence of earlier batches. Superseded requests are not needed: a higher sequence came first."""
        rows = self._requests.rows(["applied", "waiting", "dead"])
        if rows is None or not self._meaning.has_sequence:
            return {}
        rows, wanted = (
            rows.select("key_hash", _orderable(rows.schema["seq"].dataType).alias("seq")),
            _table("key_hash", keys),
        )
        found = few_rows.few(rows, wanted)
        if found is None:
            found = few_rows.joined(rows, wanted).groupBy("key_hash").agg(F.max("seq").alias("seq"))
        sequences = few_rows.to_arrow(found)
        highest: dict[str, Orderable] = {}
        for key, seq in zip(sequences["key_hash"].to_pylist(), sequences["seq"].to_pylist(), strict=True):
            if seq is not None and (key not in highest or seq > highest[key]):
                highest[key] = seq
        return highest

    def _waiting(self, keys: Sequence[str], erasures: Erasures | None) -> Held:
        """Returns the waiting requests of these keys; they are tried again, before the batch."""
        rows = self._requests.rows(["waiting"])
        # Where keys move, rows that the stream moved itself are not new for waiting requests: only sweeps retry those.
        if rows is None or self._meaning.is_standing or self._meaning.moves_rows:
            return NOBODY
        return self.read(few_rows.among(rows, _table("key_hash", keys)), erasures)

    def _standing(self, keys: Sequence[str], erasures: Erasures | None) -> StandingRequests:
        rows = self._requests.rows(["applied"])
        if rows is None or not self._meaning.is_standing:
            return NOTHING_STANDS
        wanted = _table("key_hash", keys)
        if not self._meaning.moves_rows:
            of_keys = few_rows.to_arrow(few_rows.among(rows.select("key_hash", "request_id"), wanted))
            return StandingRequests(by_key=_pairs(of_keys, "key_hash", "request_id"), ends={})
        paths = rows.where(F.col("effect").isNotNull())
        begun = few_rows.to_arrow(few_rows.among(paths.select("key_hash", "request_id"), wanted))
        ends = paths.select(
            "request_id",
            F.col("effect.op").alias("op"),
            F.col("effect.set").alias("set"),
            F.col("effect.ends_at").alias("end"),
        )
        ends = few_rows.among(ends.where(F.col("op") == "update"), _table("end", keys))
        if erasures is not None:
            ends = erasures.with_doom(ends).where(~F.col("is_doomed"))
        return StandingRequests(
            by_key=_pairs(begun, "key_hash", "request_id"),
            ends=_pairs(few_rows.to_arrow(ends.select("request_id", "end")), "request_id", "end"),
        )


def steps_of(held: Held, paths: Mapping[str, Path]) -> pa.Table:
    """See `Decided.steps`."""
    pairs = [
        (key, path.first.id, request.id)
        for key, path in paths.items()
        for request in path.requests()
        if request.op == "update"
    ]
    return pa.table(
        {
            "key_hash": pa.array([key for key, _, _ in pairs], pa.string()),
            "key": held.taken([first for _, first, _ in pairs])["key"],
            "set": held.taken([id_ for _, _, id_ in pairs])["set"],
        }
    )


def _together(first: Held, second: Held) -> Held:
    if not first.index:
        return second
    rows = pa.concat_tables([first.rows, second.rows.cast(first.rows.schema)])
    ids = rows["request_id"].to_pylist()
    return Held(requests=(*first.requests, *second.requests), rows=rows, index={id_: i for i, id_ in enumerate(ids)})


def _table(name: str, values: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.string())})


def _pairs(rows: pa.Table, key: str, value: str) -> dict[str, str]:
    return dict(zip(rows[key].to_pylist(), rows[value].to_pylist(), strict=True))


def _orderable(kind: DataType) -> Column:
    """Returns `seq` as a value that Python orders as Spark does."""
    if isinstance(kind, TimestampType | TimestampNTZType):
        return F.unix_micros(F.col("seq").cast("timestamp"))
    if isinstance(kind, DateType):
        return F.unix_date("seq")
    if isinstance(kind, DoubleType | FloatType):
        return F.when(~F.isnan("seq"), F.col("seq"))
    return F.col("seq")
