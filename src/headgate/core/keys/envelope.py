"""Debezium's JSON envelopes: what one message says, with or without its schema.

Rules for editors: a message that is not understood is an error, never skipped; what is skipped is listed here.

Source: Debezium's documentation of its connectors, "Data change events" and "Transaction metadata".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from headgate.core.keys import positions
from headgate.core.keys.change import Image, Op
from headgate.core.keys.positions import Order, Position

UNAVAILABLE = "__debezium_unavailable_value"
"""In place of a large value that did not change and that the source did not send."""
UNAVAILABLE_VALUES = (
    UNAVAILABLE,
    base64.b64encode(UNAVAILABLE.encode()).decode(),
    [UNAVAILABLE],
    {UNAVAILABLE: UNAVAILABLE},
)
STAND_INS: tuple[object, ...] = ("", 0, "AA==", "1970-01-01T00:00:00Z", "00:00:00Z", "{}", [], {})
"""What PostgreSQL's connector sends for a value that it does not know, if the column is NOT NULL and has no default."""
EPOCH = datetime(1970, 1, 1)


class NotAnEnvelope(ValueError):
    """What is wrong with a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanged:
    """One row, or all rows of a table (`t`)."""

    op: Op
    table: str
    """As the source calls it, without database and schema."""
    collection: str
    """With them, as transaction metadata and topics name it."""
    before: Image | None
    after: Image | None
    at: Position
    is_partial: bool = False
    """`after` lacks large values that did not change."""
    is_snapshot: bool = False
    """A snapshot read it."""

    @property
    def tx(self) -> str | None:
        """Its transaction, if the source sends transaction metadata."""
        return self.at.tx

    @property
    def total_order(self) -> int | None:
        """Its place within the transaction, from 1."""
        return self.at.total_order

    @property
    def order(self) -> Order | None:
        """Its place in the source, never falling within a log; several rows may have one. None: unknown, or a snapshot."""
        return self.at.order


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """A transaction is complete."""

    id: str
    counts: Mapping[str, int]
    """Collection → how many events."""


Envelope = RowChanged | TransactionEnded | None
"""None: nothing to do (a tombstone, a heartbeat, a begin, a message of the application, a definition)."""


def read(value: object, key: object = None) -> Envelope:
    """What a message says.

    Args:
        value: Its decoded JSON; None for a tombstone.
        key: The decoded JSON of its key, where it has one.

    Raises:
        NotAnEnvelope: It is none of Debezium's messages.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise NotAnEnvelope("not an object")
    schema: object = None
    if value.keys() == {"schema", "payload"}:
        schema, value = value["schema"], value["payload"]
        if value is None:
            return None
        if not isinstance(value, dict):
            raise NotAnEnvelope("its payload is not an object")
    if "status" in value and "id" in value:
        return _transaction(value)
    if "op" not in value:
        if "ddl" in value or "tableChanges" in value or value.keys() <= {"ts_ms", "ts_us", "ts_ns"}:
            return None
        raise NotAnEnvelope("it has no op (the message is unwrapped, or not Debezium's)")
    return _row(value, schema, key)


def _transaction(value: Mapping[str, Any]) -> TransactionEnded | None:
    if value["status"] == "BEGIN":
        return None
    counts: dict[str, int] = {}
    try:
        for one in value["data_collections"] or ():
            counts[one["data_collection"]] = counts.get(one["data_collection"], 0) + int(one["event_count"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotAnEnvelope("the end of a transaction does not say how many events it has") from error
    return TransactionEnded(id=str(value["id"]), counts=counts)


def _row(value: Mapping[str, Any], schema: object, key: object) -> RowChanged | None:
    op, source = value["op"], value.get("source") or {}
    if op == "m":
        return None
    if op not in ("c", "r", "u", "d", "t"):
        raise NotAnEnvelope(f"op {op!r} is not known")
    if not isinstance(source, dict) or not source.get("table"):
        raise NotAnEnvelope("its source names no table")
    decoders = _decoders(schema)
    is_postgres = source.get("connector") == "postgresql"
    if is_postgres and op in ("u", "d"):
        value = {**value, "before": _known(value.get("before"), schema, key)}
    before, after = (_image(value.get(name), name, decoders.get(name, {})) for name in ("before", "after"))
    if op in ("c", "r", "u") and after is None:
        raise NotAnEnvelope("after is missing")
    if op == "d" and before is None:
        before = _key(key)
        if before is None:
            raise NotAnEnvelope("a deleted row has neither a before-image nor a key")
    try:
        at = _position(value, source)
    except (KeyError, TypeError, ValueError) as error:
        raise NotAnEnvelope(f"its position or its transaction cannot be read ({error})") from error
    names = [str(source[one]) for one in ("db", "schema", "table") if source.get(one)]
    if is_postgres:
        names = names[-2:]
    return RowChanged(
        # A row that a snapshot read may be there already: it is written over.
        op="u" if op == "r" else cast(Op, op), table=str(source["table"]), collection=".".join(names),
        before=None if op == "t" else before, after=None if op in ("d", "t") else after,
        at=at, is_snapshot=_snapshot(value) != "",
        is_partial=op in ("c", "u") and after is not None and len(after) < len(value["after"]),
    )  # fmt: skip


def _position(value: Mapping[str, Any], source: Mapping[str, Any]) -> Position:
    transaction = value.get("transaction") or {}
    snapshot, server = _snapshot(value), source.get("server_id")
    return Position(
        origin=positions.origin(source), order=None if snapshot else positions.order(source),
        digest=positions.digest(value, source), gtid=positions.gtid(source),
        server=server if isinstance(server, int) else None, ts_ms=int(source.get("ts_ms") or 0),
        tx=str(transaction["id"]) if transaction else None,
        total_order=int(transaction["total_order"]) if transaction else None,
        transaction=str(source.get("txId") or source.get("gtid") or ""),
        begins_log=snapshot not in ("", "incremental"),
    )  # fmt: skip


def _snapshot(value: Mapping[str, Any]) -> str:
    """What kind of snapshot read the row; empty: none."""
    said = str((value.get("source") or {}).get("snapshot") or "false").lower()
    return said if said != "false" else "true" if value["op"] == "r" else ""


def _known(before: object, schema: object, key: object) -> object:
    """`before`, or its key alone if the rest stands in for values that the source does not know (REPLICA IDENTITY DEFAULT)."""
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        key = key["payload"]
    if not isinstance(before, dict) or not isinstance(key, dict) or not key or not key.keys() <= before.keys():
        return before
    fields = schema.get("fields") if isinstance(schema, dict) else None
    rows = [one for one in fields or () if isinstance(one, dict) and one.get("field") == "before"]
    columns = [one for row in rows for one in row.get("fields") or () if isinstance(one, dict)]
    defaults = {one.get("field"): one["default"] for one in columns if one.get("default") is not None}
    for name, value in before.items():
        if name not in key and value is not None and value not in STAND_INS and value != defaults.get(name):
            return before
    return {name: before[name] for name in key}


def _key(key: object) -> Image | None:
    schema: object = None
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        schema, key = key["schema"], key["payload"]
    return _image(key, "key", _columns(schema)) if isinstance(key, dict) and key else None


def _image(value: object, name: str, decoders: Mapping[str, Callable[[Any], Any]]) -> Image | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise NotAnEnvelope(f"{name} is not an object")
    image = {}
    for column, one in value.items():
        if isinstance(one, str | list | dict) and one in UNAVAILABLE_VALUES:
            continue
        decode = decoders.get(column)
        try:
            image[column] = one if decode is None or one is None else decode(one)
        except (TypeError, ValueError, KeyError, OverflowError, binascii.Error) as error:
            raise NotAnEnvelope(f"{name}.{column} is not what its schema says ({error})") from error
    return image


def joined(rows: Sequence[RowChanged]) -> Sequence[RowChanged]:
    """The rows of a transaction, with a change of a key that was sent in two as one.

    Only where the new row lacks values: a row that is really new never does, so that the old one is what was sent before it.
    """
    found: list[RowChanged] = []
    for row in rows:
        old = found[-1] if found else None
        if (
            row.op == "c" and row.is_partial and old is not None and old.op == "d"
            and (old.collection, old.order) == (row.collection, row.order)
            and old.total_order is not None and old.total_order + 1 == row.total_order
        ):  # fmt: skip
            found[-1] = replace(row, op="u", before=old.before)
        else:
            found.append(row)
    return found


# ------------------------------------------------------------------------------------------------ values with a schema


def _decoders(schema: object) -> Mapping[str, Mapping[str, Callable[[Any], Any]]]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return {one["field"]: _columns(one) for one in fields or () if isinstance(one, dict) and "field" in one}


def _columns(schema: object) -> Mapping[str, Callable[[Any], Any]]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    found = {}
    for one in fields or ():
        if isinstance(one, dict) and "field" in one:
            decode = _decoder(one)
            if decode is not None:
                found[one["field"]] = decode
    return found


def _decoder(schema: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    name = str(schema.get("name") or "")
    if name == "org.apache.kafka.connect.data.Decimal":
        scale = int((schema.get("parameters") or {}).get("scale", 0))
        return lambda value: _decimal(value, scale)
    if name == "io.debezium.data.VariableScaleDecimal":
        return lambda value: _decimal(value["value"], int(value["scale"]))
    if name == "io.debezium.data.Bits":
        length = int((schema.get("parameters") or {}).get("length", 1))
        return lambda value: f"{int.from_bytes(base64.b64decode(value), 'little'):0{length}b}"
    if name in LOGICAL:
        return LOGICAL[name]
    if schema.get("type") == "bytes":
        return lambda value: base64.b64decode(value, validate=True)
    if schema.get("type") == "array":
        of = schema.get("items")
        decode = _decoder(of) if isinstance(of, dict) else None
        if decode is not None:
            return lambda values: [None if one is None else decode(one) for one in values]
    return None


def _decimal(value: str | float | Decimal, scale: int) -> Decimal:
    if not isinstance(value, str):  # of a converter with decimal.format=NUMERIC
        return Decimal(str(value))
    number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    return Decimal(f"{number}e{-scale}")  # as text it is exact, whatever the precision of this thread


def _date(days: int) -> date:
    return (EPOCH + timedelta(days=days)).date()


def _moment(per_second: int) -> Callable[[int], datetime]:
    # Without a zone: what the source keeps without one, Debezium counts as if it were UTC.
    return lambda value: EPOCH + timedelta(microseconds=value * 1_000_000 // per_second)


def _time(per_second: int) -> Callable[[int], str]:
    return lambda value: _duration(value * 1_000_000 // per_second)


def _duration(microseconds: int) -> str:
    # MySQL's TIME is negative or beyond a day, too, and PostgreSQL has 24:00:00: what the target cannot hold, it refuses.
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + (f".{rest:06}" if rest else "")
    return f"-{text}" if microseconds < 0 else text


LOGICAL: Mapping[str, Callable[[Any], Any]] = {
    "io.debezium.time.Date": _date,
    "org.apache.kafka.connect.data.Date": _date,
    "io.debezium.time.Timestamp": _moment(1_000),
    "org.apache.kafka.connect.data.Timestamp": _moment(1_000),
    "io.debezium.time.MicroTimestamp": _moment(1_000_000),
    "io.debezium.time.NanoTimestamp": _moment(1_000_000_000),
    "io.debezium.time.ZonedTimestamp": lambda text: datetime.fromisoformat(text).astimezone(UTC),
    "io.debezium.time.Time": _time(1_000),
    "org.apache.kafka.connect.data.Time": _time(1_000),
    "io.debezium.time.MicroTime": _time(1_000_000),
    "io.debezium.time.NanoTime": _time(1_000_000_000),
}
"""A schema's name → its value, as Python has it."""
