"""Reads Debezium's JSON envelopes, with or without schema.

Rules for editors: an unknown message is an error and is never skipped; the messages to skip are listed here.

Source: Debezium's documentation of its connectors, "Data change events" and "Transaction metadata".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from lakegate.syncs.plan import log_position, values
from lakegate.syncs.plan.change import Image, Op, Unread
from lakegate.syncs.plan.log_position import Order, Position
from lakegate.syncs.plan.values import UNAVAILABLE, BytesAs, Decode, Placeholders, Undecoded

USUAL = Placeholders(UNAVAILABLE)
STAND_INS: tuple[object, ...] = ("", 0, "AA==", "1970-01-01T00:00:00Z", "00:00:00Z", "{}", [], {})
"""Values that PostgreSQL's connector sends for an unknown value, if the column is NOT NULL and has no default."""


class NotAnEnvelope(ValueError):
    """A message is not an envelope. The text of the error says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanged:
    """A change of one row, or of all rows of a table (`t`)."""

    op: Op
    table: str
    """The source's name of the table, without database and schema."""
    collection: str
    """The name with database and schema, as in transaction metadata and topics."""
    before: Image | None
    after: Image | None
    at: Position
    is_partial: bool = False
    """Whether `after` lacks large unchanged values."""
    is_snapshot: bool = False
    """Whether a snapshot read the row."""
    unread: Unread | None = None
    """For the op `unread`: the unreadable message. Its position is set as far as it can be read."""

    committed_at_ms: int | None = None
    """When the source committed the change. None for a row that a snapshot read."""

    @property
    def tx(self) -> str | None:
        """The row's transaction, if the source sends transaction metadata."""
        return self.at.tx

    @property
    def total_order(self) -> int | None:
        """The change's number within the transaction, from 1."""
        return self.at.total_order

    @property
    def order(self) -> Order | None:
        """The position in the source, never decreasing within a log. Rows may share it. None: unknown, or from a snapshot."""
        return self.at.order


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """The end of a complete transaction."""

    id: str
    counts: Mapping[str, int]
    """Collection → number of events."""


Envelope = RowChanged | TransactionEnded | None
"""None for a message to skip (tombstone, heartbeat, begin of a transaction, application message, definition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The settings of the source's connector that its messages do not contain."""

    bytes_as: BytesAs | None = None
    """The encoding of bytes without a schema. None: not configured, and a text for a binary column is refused."""
    unavailable: Placeholders = USUAL

    @property
    def bare(self) -> Decode:
        """The decoder that marks values of an envelope without a schema."""
        return values.bare(self.bytes_as)


DEFAULT = Reading()


def read(
    value: object, key: object = None, reading: Reading = DEFAULT, *, recorded_at_ms: int | None = None
) -> Envelope:
    """Decodes a message.

    Args:
        value: The decoded JSON of the message; None for a tombstone.
        key: The decoded JSON of its key, if it has one.
        reading: The settings of the source's connector.
        recorded_at_ms: The time that the log gives the message, for a message that does not tell when its source committed it.

    Raises:
        NotAnEnvelope: The message is not one of Debezium's.
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
    return _row(value, schema, key, reading, recorded_at_ms)


NOWHERE = Position(origin="?", order=None)


def damaged(value: object, unread: Unread) -> RowChanged:
    """Returns an unreadable message as a change, with the position that it contains.

    Args:
        value: The message's JSON, if it is JSON.
        unread: The part of the message to keep.
    """
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        value = value["payload"]
    at, table, collection = NOWHERE, "", ""
    if isinstance(value, dict) and isinstance(value.get("source"), dict) and value["source"].get("table"):
        try:
            at = _position({"op": "", **value}, value["source"])
            table, collection = str(value["source"]["table"]), _collection(value["source"])
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
    return RowChanged(op="unread", table=table, collection=collection, before=None, after=None, at=at, unread=unread)


def _collection(source: Mapping[str, Any]) -> str:
    """Returns a table's name as in transaction metadata and topics."""
    names = [str(source[one]) for one in ("db", "schema", "table") if source.get(one)]
    return ".".join(names[-2:] if source.get("connector") == "postgresql" else names)


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


def _row(
    value: Mapping[str, Any], schema: object, key: object, reading: Reading, recorded_at_ms: int | None
) -> RowChanged | None:
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
    every = reading.bare if schema is None else None
    before, after = (
        _image(value.get(name), name, decoders.get(name, {}), every, reading) for name in ("before", "after")
    )
    if op in ("c", "r", "u") and after is None:
        raise NotAnEnvelope("after is missing")
    if op == "d" and before is None:
        before = _key(key, reading)
        if before is None:
            raise NotAnEnvelope("a deleted row has neither a before-image nor a key")
    try:
        at = _position(value, source)
    except (KeyError, TypeError, ValueError) as error:
        raise NotAnEnvelope(f"its position or its transaction cannot be read ({error})") from error
    is_snapshot = _snapshot(value) != ""
    return RowChanged(
        # A row that a snapshot read may already exist: it is overwritten.
        op="u" if op == "r" else cast(Op, op), table=str(source["table"]), collection=_collection(source),
        before=None if op == "t" else before, after=None if op in ("d", "t") else after,
        at=at, is_snapshot=is_snapshot, committed_at_ms=None if is_snapshot else at.ts_ms or recorded_at_ms,
        is_partial=op in ("c", "u") and after is not None and len(after) < len(value["after"]),
    )  # fmt: skip


def _position(value: Mapping[str, Any], source: Mapping[str, Any]) -> Position:
    transaction = value.get("transaction") or {}
    snapshot, server = _snapshot(value), source.get("server_id")
    return Position(
        origin=log_position.origin(source), order=None if snapshot else log_position.order(source),
        digest=log_position.digest(value, source), gtid=log_position.gtid(source),
        server=server if isinstance(server, int) else None, ts_ms=int(source.get("ts_ms") or 0),
        tx=str(transaction["id"]) if transaction else None,
        total_order=int(transaction["total_order"]) if transaction else None,
        transaction=str(source.get("txId") or source.get("gtid") or ""),
        begins_log=snapshot not in ("", "incremental"),
    )  # fmt: skip


def _snapshot(value: Mapping[str, Any]) -> str:
    """Returns the kind of snapshot that read the row; empty if none did."""
    said = str((value.get("source") or {}).get("snapshot") or "false").lower()
    return said if said != "false" else "true" if value["op"] == "r" else ""


def _known(before: object, schema: object, key: object) -> object:
    """Returns `before`; or only its key, if the other values are stand-ins for unknown ones (REPLICA IDENTITY DEFAULT)."""
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


def _key(key: object, reading: Reading) -> Image | None:
    schema: object = None
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        schema, key = key["schema"], key["payload"]
    every = reading.bare if schema is None else None
    return _image(key, "key", values.columns(schema), every, reading) if isinstance(key, dict) and key else None


def _image(
    value: object, name: str, decoders: Mapping[str, Decode], every: Decode | None, reading: Reading
) -> Image | None:
    """Decodes the columns of a row. `every` is for columns without a decoder."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise NotAnEnvelope(f"{name} is not an object")
    image = {}
    for column, one in value.items():
        if isinstance(one, str | list | dict) and reading.unavailable.has(one):
            continue
        decode = decoders.get(column, every)
        try:
            image[column] = one if decode is None or one is None else decode(one)
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
            # Only the row is faulty: it is refused or quarantined when it is written.
            image[column] = Undecoded(str(one), f"{column} is not what its schema says ({error})")
    return image


ONE_KIND = ("postgresql/", "mysql/", "mariadb/")
"""Logs in which a position names one record, or one event of rows: a delete and an insert at one position are an update."""


def joined(rows: Sequence[RowChanged]) -> Sequence[RowChanged]:
    """Returns the rows of a transaction; a change of a key that was sent as delete and insert becomes an update.

    Only if the new row lacks values, which a really new row never does, or in logs in which one position holds one kind of
    change. As a delete, the change would trigger foreign key actions.
    """
    found: list[RowChanged] = []
    for row in rows:
        old = found[-1] if found else None
        if (
            row.op == "c" and (row.is_partial or row.at.origin.startswith(ONE_KIND)) and old is not None and old.op == "d"
            and row.order is not None and (old.collection, old.order) == (row.collection, row.order)
            and (row.total_order is None if old.total_order is None else old.total_order + 1 == row.total_order)
        ):  # fmt: skip
            found[-1] = replace(row, op="u", before=old.before)
        else:
            found.append(row)
    return found


# ------------------------------------------------------------------------------------------------ values with a schema


def _decoders(schema: object) -> Mapping[str, Mapping[str, Decode]]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return {one["field"]: values.columns(one) for one in fields or () if isinstance(one, dict) and "field" in one}
