"""Converts records of a source to rows of the request table. Every expression is evaluated once.

The stored values are applied, in this run and after a crash; so random values and clock values do not change any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructField, StructType

from lakegate.config import Erase, Mutate, StreamSpec
from lakegate.quoting import quoted, quoted_literal
from lakegate.spark.fitting import attempted, fitted
from lakegate.spark.sources import BAD, ORDER, POSITION, RAW, RECORD
from lakegate.streams.bad_records import JSON, over_good, remembered, with_text
from lakegate.streams.requests.table import NOTHING, sql_type
from lakegate.streams.table_rules import Rule, rules_broken_by

_JSON = {**JSON, "timeZone": "UTC"}
"""Must be exact: two different keys with one digest would be taken for the same key."""


def digest(values: Mapping[str, Column]) -> Column:
    """Returns the SHA-256 of the values of a key, hex; null where one of them is null.

    Values that are equal in the table have the same digest, whatever their notation: see `fields_of`.
    """
    is_whole = F.lit(True)
    for value in values.values():
        is_whole &= value.isNotNull()
    named = [value.alias(f"_{i}") for i, value in enumerate(values.values())]
    return F.when(is_whole, F.sha2(F.to_json(F.struct(*named), _JSON), 256))


def fields_of(struct: DataType, prefix: str) -> dict[str, Column]:
    """Returns the fields of a struct column, by name; zero without a sign, because `=` ignores the sign of zero."""
    assert isinstance(struct, StructType)
    return {one.name: _unsigned(F.col(f"{prefix}.{quoted(one.name)}"), one.dataType) for one in struct.fields}


def _unsigned(value: Column, kind: DataType) -> Column:
    match kind:
        case FloatType() | DoubleType():
            return F.when(value == 0, F.lit(0.0).cast(kind)).otherwise(value)
        case ArrayType(elementType=inner) if _has_sign(inner):
            return F.transform(value, lambda item: _unsigned(item, inner))
        case StructType() if _has_sign(kind):
            parts = [_unsigned(value.getField(one.name), one.dataType).alias(one.name) for one in kind.fields]
            return F.when(value.isNotNull(), F.struct(*parts))
    return value


def _has_sign(kind: DataType) -> bool:
    match kind:
        case ArrayType(elementType=inner):
            return _has_sign(inner)
        case StructType(fields=fields):
            return any(_has_sign(field.dataType) for field in fields)
    return isinstance(kind, FloatType | DoubleType)


def moved_key(key: Mapping[str, Column], set_: Mapping[str, Column]) -> Column:
    """Returns the digest of the key that a row has after an update."""
    assigned = {name.lower(): value for name, value in set_.items()}
    return digest({name: assigned.get(name.lower(), value) for name, value in key.items()})


class Intake:
    """Converts the records of one stream to requests."""

    def __init__(self, spec: StreamSpec, target: StructType | None, rules: Sequence[Rule] = ()) -> None:
        """See the class.

        Args:
            spec: A `mutate` or `erase` stream.
            target: The columns of its table; None if there is no table yet: then the types of the requests are used.
            rules: The table's rules. A request is tested against those that depend on its own values alone.
        """
        kind = spec.kind
        assert isinstance(kind, Mutate | Erase)
        self._spec = spec
        self._kind: Mutate | Erase = kind
        self._rules = rules
        self._types = {} if target is None else {field.name.lower(): field for field in target.fields}

    def prepared(self, batch: DataFrame) -> DataFrame:
        """Returns `key`, `set`, `op`, `seq` and the source columns; and in `_lg_bad` the reason why a value does not fit.

        A record that did not parse has no values, so no expression is evaluated for it.
        """
        return over_good(batch, self._prepared)

    def _prepared(self, batch: DataFrame) -> DataFrame:
        kind = self._kind
        assigned = kind.set if isinstance(kind, Mutate) else {}
        sequence = kind.sequence_by if isinstance(kind, Mutate) else None
        tried = {
            **{f"_lg_key{i}": (name, _over_good(sql)) for i, (name, sql) in enumerate(kind.match.items())},
            **{f"_lg_set{i}": (name, _over_good(sql)) for i, (name, sql) in enumerate(assigned.items())},
            "_lg_op": ("its kind", self._op()),
            "_lg_seq": (
                "sequence_by",
                (F.lit(None).cast("bigint"), F.lit(False)) if sequence is None else _over_good(sequence),
            ),
        }
        raised = [F.when(is_raised, F.lit(f"cannot be computed: {what}")) for what, (_, is_raised) in tried.values()]
        batch = remembered(batch).select(
            "*",
            *[value.alias(name) for name, (_, (value, _)) in tried.items()],
            F.coalesce(*raised).alias("_lg_raised"),
        )
        keys = [self._fitted(batch, name, f"_lg_key{i}") for i, name in enumerate(kind.match)]
        values = [self._fitted(batch, name, f"_lg_set{i}") for i, name in enumerate(assigned)]
        nothing = F.lit(None).cast(NOTHING)
        bad = F.coalesce(BAD, F.col("_lg_raised"), *[misfit for _, misfit in [*keys, *values]])
        requests = batch.select(
            F.struct(*[value for value, _ in keys]).alias("key"),
            (F.struct(*[value for value, _ in values]) if values else nothing).alias("set"),
            F.col("_lg_op").alias("op"),
            F.col("_lg_seq").alias("seq"),
            ORDER,
            POSITION,
            bad.alias(BAD),
            RAW,
            RECORD,
        )
        return with_text(self._tested(requests))

    def _tested(self, requests: DataFrame) -> DataFrame:
        """Adds to `_lg_bad` the rule of the table that every row with the request's values would break."""
        kind = self._kind
        if not isinstance(kind, Mutate):
            return requests
        rules = [rule for rule in self._rules if rule.may_hang_on(kind.set)]
        if not rules:
            return requests
        set_ = fields_of(requests.schema["set"].dataType, "_lg_request.set")
        assigned = {name.lower() for name in set_}
        key = fields_of(requests.schema["key"].dataType, "_lg_request.key")
        stays = [value.alias(name) for name, value in key.items() if name.lower() not in assigned]
        nested = requests.select(F.struct("*").alias("_lg_request"))
        rows = nested.select("_lg_request", *[value.alias(name) for name, value in set_.items()], *stays)
        # Rules on the key alone concern the rows with that key, not the request. A request without a key matches no row.
        of_key = rules_broken_by(nested.select(*stays), rules)
        tests = [rule for rule in rules_broken_by(rows, rules) if all(rule is not one for one in of_key)]
        is_update = F.col("_lg_request.op") == "update"
        for value in key.values():
            is_update &= value.isNotNull()
        checks = [F.when(is_update & rule.is_broken, F.lit(rule.reason)) for rule in tests]
        if not checks:
            return requests
        marked = rows.withColumn("_lg_now_bad", F.coalesce(f"_lg_request.{BAD}", *checks))
        return marked.select(
            *[
                F.col("_lg_now_bad" if name == BAD else f"_lg_request.{quoted(name)}").alias(name)
                for name in requests.columns
            ]
        )

    def _op(self) -> tuple[Column, Column]:
        """Returns the kind of a request, and a test of whether its evaluation raises."""
        kind = self._kind
        if isinstance(kind, Erase):
            return _chosen(kind.lift_when, "lift", "erase")
        if kind.delete_when is None and not kind.set:
            return F.lit("delete"), F.lit(False)
        return _chosen(kind.delete_when, "delete", "update")

    def _fitted(self, batch: DataFrame, name: str, given: str) -> tuple[Column, Column]:
        """Returns the value with the table's type, and the reason why it does not fit."""
        wanted = self._types.get(name.lower()) or StructField(name, batch.schema[given].dataType)
        return fitted(F.col(given), batch.schema[given].dataType, wanted)


def stored(
    good: DataFrame,
    layout: StructType,
    *,
    applies_to: str,
    stamp: str,
    batch_id: int,
    now_ms: int,
    head: int,
) -> DataFrame:
    """Returns the rows of the request table, in the state `stored`.

    Args:
        good: The result of `Intake.prepared`, without bad records.
        layout: The request table's columns.
        applies_to: As in the file.
        stamp: Together with the batch and the ordinal in it, a unique part of the request id.
        batch_id: The micro-batch.
        now_ms: The wall clock.
        head: The target's version.
    """
    ordinal = F.row_number().over(Window.orderBy(ORDER))
    key = digest(fields_of(good.schema["key"].dataType, "key"))
    rows = good.select("key", "set", "op", "seq", POSITION, ordinal.alias("ordinal"), key.alias("key_hash"))
    own = {name: name for name in ("key", "set", "op", "seq", "ordinal", "key_hash")}
    values = {
        **own,
        "source_position": POSITION,
        "batch": str(batch_id),
        "request_id": f"concat({quoted_literal(f'{stamp}.{batch_id}.')}, ordinal)",
        "applies_to": quoted_literal(applies_to),
        "state": "'stored'",
        "first_seen_ms": str(now_ms),
        "tested_version": str(head),
        "matched_rows": "0",
    }
    # As text, because each step of an expression that is built with functions is a call of the JVM.
    return rows.selectExpr(
        *[
            f"CAST({values.get(field.name, 'NULL')} AS {sql_type(field.dataType)}) AS {quoted(field.name)}"
            for field in layout.fields
        ]
    )


def _over_good(sql: str) -> tuple[Column, Column]:
    """Returns SQL over a record that parsed, NULL where its evaluation raises; and a test of whether it raises."""
    value, is_raised = attempted(F.expr(sql))
    is_good = F.col(BAD).isNull()
    return F.when(is_good, value), is_good & is_raised


def _chosen(condition: str | None, if_true: str, otherwise: str) -> tuple[Column, Column]:
    if condition is None:
        return F.lit(otherwise), F.lit(False)
    holds, is_raised = _over_good(condition)
    return F.when(holds, F.lit(if_true)).otherwise(F.lit(otherwise)), is_raised
