"""Requests on their way in: from records of a source to rows of the request table, with every expression evaluated once.

What is stored is what is applied, in this run and after a crash; so a value that is drawn or read from the clock is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from headgate.core.spec import Erase, Mutate, StreamSpec
from headgate.delta.requests import NOTHING
from headgate.spark.sources import BAD, ORDER, POSITION, RAW
from headgate.streams.fitting import fitted
from headgate.streams.records import payload, quoted, text_of

_JSON = {
    # As exact as the values are: two keys with one digest would be taken for one.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


def digest(values: Mapping[str, Column]) -> Column:
    """SHA-256 of the values of a key, hex; null where one of them is null."""
    is_whole = F.lit(True)
    for value in values.values():
        is_whole &= value.isNotNull()
    named = [value.alias(f"_{i}") for i, value in enumerate(values.values())]
    return F.when(is_whole, F.sha2(F.to_json(F.struct(*named), _JSON), 256))


def fields_of(struct: DataType, prefix: str) -> dict[str, Column]:
    """The fields of a struct column, by name."""
    assert isinstance(struct, StructType)
    return {name: F.col(f"{prefix}.{quoted(name)}") for name in struct.names}


def moved_key(key: Mapping[str, Column], set_: Mapping[str, Column]) -> Column:
    """Digest of the key that a row has after an update."""
    assigned = {name.lower(): value for name, value in set_.items()}
    return digest({name: assigned.get(name.lower(), value) for name, value in key.items()})


class Intake:
    """How records of one stream become requests."""

    def __init__(self, spec: StreamSpec, target: StructType | None) -> None:
        """See the class.

        Args:
            spec: A `mutate` or `erase` stream.
            target: The columns of its table; None where there is no table yet, and the requests' own types are taken.
        """
        kind = spec.kind
        assert isinstance(kind, Mutate | Erase)
        self._spec = spec
        self._kind: Mutate | Erase = kind
        self._types = {} if target is None else {field.name.lower(): field for field in target.fields}

    def prepared(self, batch: DataFrame) -> DataFrame:
        """`key`, `set`, `op`, `seq` and the source columns; in `_hg_bad` what does not fit the table's types.

        A record that did not parse has no values, so nothing is evaluated over it.
        """
        kind = self._kind
        assigned = kind.set if isinstance(kind, Mutate) else {}
        sequence = kind.sequence_by if isinstance(kind, Mutate) else None
        record = payload(batch)
        batch = batch.select(
            "*",
            *[_over_good(sql).alias(f"_hg_key{i}") for i, sql in enumerate(kind.match.values())],
            *[_over_good(sql).alias(f"_hg_set{i}") for i, sql in enumerate(assigned.values())],
            self._op().alias("_hg_op"),
            (F.lit(None).cast("bigint") if sequence is None else _over_good(sequence)).alias("_hg_seq"),
        )
        keys = [self._fitted(batch, name, f"_hg_key{i}") for i, name in enumerate(kind.match)]
        values = [self._fitted(batch, name, f"_hg_set{i}") for i, name in enumerate(assigned)]
        nothing = F.lit(None).cast(NOTHING)
        bad = F.coalesce(BAD, *[misfit for _, misfit in [*keys, *values]])
        return batch.select(
            F.struct(*[value for value, _ in keys]).alias("key"),
            (F.struct(*[value for value, _ in values]) if values else nothing).alias("set"),
            F.col("_hg_op").alias("op"),
            F.col("_hg_seq").alias("seq"),
            ORDER,
            POSITION,
            bad.alias(BAD),
            F.when(bad.isNotNull(), text_of(record)).alias(RAW),
        )

    def stored(
        self, good: DataFrame, layout: StructType, *, stamp: str, batch_id: int, now_ms: int, head: int
    ) -> DataFrame:
        """The rows of the request table, in the state `stored`.

        Args:
            good: What `prepared` gave, without the bad ones.
            layout: The request table's columns.
            stamp: With the batch and the place in it, it makes an id that is never used twice.
            batch_id: The micro-batch.
            now_ms: The wall clock.
            head: The target's version.
        """
        kind = self._kind
        standing = kind.applies_to if isinstance(kind, Mutate) else "arrived_and_later"
        ordinal = F.row_number().over(Window.orderBy(ORDER))
        key = fields_of(good.schema["key"].dataType, "key")
        rows = good.select("key", "set", "op", "seq", POSITION, ordinal.alias("ordinal"), digest(key).alias("key_hash"))
        values = {
            "source_position": F.col(POSITION),
            "batch": F.lit(batch_id),
            "request_id": F.concat(F.lit(f"{stamp}.{batch_id}."), F.col("ordinal").cast("string")),
            "applies_to": F.lit(standing),
            "state": F.lit("stored"),
            "first_seen_ms": F.lit(now_ms),
            "tested_version": F.lit(head),
            "matched_rows": F.lit(0),
        }
        columns = []
        for field in layout.fields:
            own = F.col(field.name) if field.name in rows.columns else F.lit(None)
            columns.append(values.get(field.name, own).cast(field.dataType).alias(field.name))
        return rows.select(*columns)

    def _op(self) -> Column:
        kind = self._kind
        if isinstance(kind, Erase):
            return _chosen(kind.lift_when, "lift", "erase")
        if kind.delete_when is None and not kind.set:
            return F.lit("delete")
        return _chosen(kind.delete_when, "delete", "update")

    def _fitted(self, batch: DataFrame, name: str, given: str) -> tuple[Column, Column]:
        """The value as the table's type, and why it does not fit."""
        wanted = self._types.get(name.lower()) or StructField(name, batch.schema[given].dataType)
        return fitted(F.col(given), batch.schema[given].dataType, wanted)


def _over_good(sql: str) -> Column:
    return F.when(F.col(BAD).isNull(), F.expr(sql))


def _chosen(condition: str | None, if_true: str, otherwise: str) -> Column:
    if condition is None:
        return F.lit(otherwise)
    return F.when(F.col(BAD).isNull() & F.expr(condition), F.lit(if_true)).otherwise(F.lit(otherwise))
