"""Reads records from a source's files and topics without the sync's own reader, only for a comparison.

Rules for editors: see `lakegate.syncs.replay`. A record counts as sent again by its position in the source, and only within one
server. In doubt it is replayed: a record replayed in order changes no correct row.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Self

from lakegate.errors import Corrupt
from lakegate.syncs.plan.record import Record, Row
from lakegate.syncs.sources.files import paths_of
from lakegate.syncs.sources.lines import RECORD_BYTES_MAX, TooLong, lines

EPOCH = datetime(1970, 1, 1)
FRACTION = re.compile(r"\.\d{7,}")
"""A fraction of a second with more digits than are compared."""
NO_CHANGE = frozenset({"status", "ddl", "tableChanges", "ts_ms", "ts_us", "ts_ns"})
"""Keys of messages that are not row changes."""
UNREADABLE = object()
"""Stands for a value whose type is not known here."""


class Raw(NamedTuple):
    """A message of a log."""

    log: str
    offset: int
    value: bytes | TooLong | None
    key: bytes | None


class Records:
    """Records in the order of their source, kept in a file to save memory. Use as a context manager."""

    def __init__(self) -> None:
        self.left_out: dict[str, set[str]] = {}
        """Target table → columns with values of a type that is not known here."""
        self.beyond = 0
        """The number of records after the target's position."""
        self.unfinished = 0
        """The number of records of transactions that have not ended."""
        self.tables: dict[str, dict[str, None]] = {}
        """Target table → the source tables of its records."""
        self.unsent: set[str] = set()
        """Placeholders for values that were not sent."""
        self.mark: Callable[[Any], Any] | None = None
        """Marks a value of an envelope without a schema as possibly encoded bytes."""
        self.unread = 0
        """The number of unreadable records."""
        self.counts_unread = False
        """Whether unreadable records are counted. Otherwise the first one ends the comparison."""
        self.shows_actions = False
        """Whether the source logs the effects of foreign key actions."""
        self._folder = tempfile.TemporaryDirectory(prefix="lakegate-verify-")
        self._file = sqlite3.connect(Path(self._folder.name) / "records.db", isolation_level=None)
        for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "BEGIN"):
            self._file.execute(statement)
        self._file.execute("CREATE TABLE r (place TEXT, n INTEGER PRIMARY KEY, is_beyond INT, record BLOB)")
        self._file.execute("CREATE TABLE seen (id BLOB PRIMARY KEY) WITHOUT ROWID")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._folder.cleanup()

    def add(self, place: str, record: Record, *, source_table: str, is_beyond: bool) -> None:
        """Adds a record. Records of one position stay in the order in which they are added."""
        if record.op in ("c", "u", "d", "t"):
            self.beyond += is_beyond
            self.tables.setdefault(record.table, {})[source_table] = None
            row = (place, is_beyond, pickle.dumps(record))
            self._file.execute("INSERT INTO r (place, is_beyond, record) VALUES (?, ?, ?)", row)

    def pass_over(self, error: object, **where: Any) -> None:
        """Counts an unreadable record.

        Raises:
            Corrupt: Unreadable records are not counted.
        """
        if not self.counts_unread:
            raise Corrupt(f"a record cannot be read: {error}; nothing was compared", **where)
        self.unread += 1

    def has_seen(self, *facts: object) -> bool:
        """Returns whether the same facts were passed before."""
        digest = hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).digest()
        return self._file.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 0

    def in_order(self, *, with_beyond: bool) -> Iterator[Record]:
        """Yields the records up to the target's position, or all."""
        self._file.execute("CREATE INDEX IF NOT EXISTS i ON r (place, n)")
        where = "" if with_beyond else "WHERE NOT is_beyond "
        for (blob,) in self._file.execute(f"SELECT record FROM r {where}ORDER BY place, n"):
            yield pickle.loads(blob)


def add_files(
    records: Records, files: str, *, table: str | None, tables: Mapping[str, str], transaction: str, through: int
) -> None:
    """Adds records of change files, in the order of `seq`.

    Raises:
        Corrupt: A line cannot be read.
    """
    for path in paths_of(files):
        for where, line in _change_lines(path, records):
            try:
                name, seq = line.get("table") or table, int(line["seq"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                records.pass_over(error, file=path, line=where)
                continue
            if isinstance(name, str):
                record = Record(
                    table=tables.get(name, name), op=str(line.get("op")), before=line.get("before"), after=line.get("after"),
                    tx=None if line.get(transaction) is None else str(line[transaction]),
                )  # fmt: skip
                records.add(f"{seq:020}", record, source_table=name, is_beyond=seq > through)


def _change_lines(path: Path, records: Records) -> Iterator[tuple[int, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            row = 0
            for batch in file.iter_batches(batch_size=10_000):
                for record in batch.to_pylist():
                    row += 1
                    try:
                        for image in ("before", "after"):
                            if isinstance(record.get(image), str):
                                record[image] = _json(record[image])
                        yield row, record
                    except (ValueError, RecursionError) as error:
                        records.pass_over(error, file=path, row=row)
        return
    for number, line in enumerate(lines(path), 1):
        if isinstance(line, TooLong):
            records.pass_over(line, file=path, line=number)
        elif line.strip():
            try:
                yield number, _json(line)
            except (ValueError, RecursionError) as error:
                records.pass_over(error, file=path, line=number)


def messages_of(files: str) -> Iterator[Raw]:
    """Yields messages of envelope files: the log is the file, the offset its line."""
    for path in paths_of(files):
        for number, line in enumerate(lines(path)):
            if isinstance(line, TooLong) or line.strip():
                yield Raw(str(path), number, line, None)


def add_envelopes(
    records: Records,
    messages: Iterable[Raw],
    metadata: Iterable[Raw] | None,
    *,
    tables: Mapping[str, str],
    ends: Mapping[str, int],
    placeholder: str = "__debezium_unavailable_value",
    mark: Callable[[Any], Any] | None = None,
) -> None:
    """Adds records of Debezium's envelopes.

    Args:
        records: The collection to add to.
        messages: The messages of all logs of changes.
        metadata: The messages of the log of transactions, if there is one: then only ended transactions are added.
        tables: Source table, with or without its schema → target table.
        ends: Log → the offset at which the target's position ends.
        placeholder: The placeholder for a value that was not sent, as text or as bytes.
        mark: Marks a value without a schema with the encoding of bytes, for the target to decode; None if not configured.
    """
    data = placeholder.encode()
    records.unsent = {placeholder, base64.b64encode(data).decode(), data.hex(), f'{{"{placeholder}":"{placeholder}"}}'}
    records.mark = mark
    ended = None if metadata is None else {_ended(one) for one in metadata}
    for message in messages:
        try:
            payload, schema = _payload(message.value)
        except (ValueError, RecursionError) as error:
            records.pass_over(error, log=message.log, offset=message.offset)
            continue
        if not isinstance(payload, dict) or not isinstance(payload.get("source"), dict) or "op" not in payload:
            if payload is not None and not (isinstance(payload, dict) and payload.keys() & NO_CHANGE):
                records.pass_over("it is no envelope", log=message.log, offset=message.offset)
            continue
        source, transaction = payload["source"], payload.get("transaction") or {}
        tx, order = transaction.get("id"), _order(source)
        if ended is not None and tx is not None and tx not in ended:
            records.unfinished += 1
            continue
        server = (source.get("name"), source.get("server_id"), source.get("gtid"), source.get("txId"))
        if order and records.has_seen(
            server, order, tx, transaction.get("total_order"), payload.get("op"), message.value
        ):
            continue  # sent again
        records.shows_actions |= source.get("connector") in ("postgresql", "sqlserver", "oracle", "db2", "informix")
        collection, bare = _collection(source), str(source.get("table") or "")
        full = f"{source.get('db')}.{collection}"
        name = next((tables[one] for one in (full, collection, bare, f"*.{bare}") if one in tables), bare)
        types = _types(schema)
        record = Record(
            table=name, op="c" if payload["op"] == "r" else str(payload["op"]), tx=tx,
            before=_image(payload.get("before"), types.get("before", {}), name, records),
            after=_image(payload.get("after"), types.get("after", {}), name, records),
        )  # fmt: skip
        is_first = payload["op"] == "r" or not order
        place = "" if is_first else "1" + ".".join(f"{one:020}" if isinstance(one, int) else one for one in order)
        is_beyond = message.offset >= ends.get(message.log, 0)
        records.add(place, record, source_table=collection, is_beyond=is_beyond)


def _order(source: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Returns a record's position, if the source provides it. PostgreSQL's transactions are ordered by their commits."""
    if isinstance(source.get("lsn"), int):
        try:
            commit, _ = json.loads(source.get("sequence") or "")
            return (int(commit or 0), source["lsn"])
        except (ValueError, TypeError):
            return (0, source["lsn"])
    if source.get("file") and source.get("pos") is not None:
        return (str(source["file"]), int(source["pos"]), int(source.get("row") or 0))
    return ()


def _collection(source: Mapping[str, Any]) -> str:
    return f"{source.get('schema') or source.get('db')}.{source.get('table')}"


def _payload(value: bytes | TooLong | None) -> tuple[Any, Any]:
    """Returns a message's payload and its schema, if any; also of a line that contains key and value."""
    if isinstance(value, TooLong):
        raise value
    if value is not None and len(value) > RECORD_BYTES_MAX:
        raise TooLong(value)
    body = None if value is None else _json(value)
    if isinstance(body, dict) and body.keys() <= {"key", "value"}:
        body = body.get("value")
    if isinstance(body, dict) and "payload" in body:
        return body["payload"], body.get("schema")
    return body, None


def _ended(message: Raw) -> str | None:
    try:
        payload, _ = _payload(message.value)
    except (ValueError, RecursionError):
        return None
    return str(payload["id"]) if isinstance(payload, dict) and payload.get("status") == "END" else None


def _types(schema: Any) -> dict[str, dict[str, Mapping[str, Any]]]:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for one in (schema or {}).get("fields") or []:
        if one.get("field") in ("before", "after"):
            found[one["field"]] = {each["field"]: each for each in one.get("fields") or []}
    return found


def _image(image: Any, types: Mapping[str, Mapping[str, Any]], table: str, found: Records) -> Row | None:
    if not isinstance(image, dict):
        return None
    row: dict[str, Any] = {}
    for name, value in image.items():
        if isinstance(value, str) and value in found.unsent:
            continue
        try:
            read = decoded(value, types.get(name))
        except (ValueError, TypeError, KeyError, AttributeError):
            read = UNREADABLE
        if read is UNREADABLE:
            found.left_out.setdefault(table, set()).add(name)
        else:
            row[name] = read if types or found.mark is None else found.mark(read)
    return row


def decoded(value: Any, schema: Mapping[str, Any] | None) -> Any:
    """Returns a value in a form that a target accepts, or `UNREADABLE`."""
    if value is None or schema is None:
        return UNREADABLE if isinstance(value, dict | list) else value
    name, kind = str(schema.get("name") or ""), schema.get("type")
    short = name.rpartition(".")[2]
    if short == "Decimal" and isinstance(value, str):
        scale = int((schema.get("parameters") or {}).get("scale", 0))
        return _decimal(value, scale)
    if short == "VariableScaleDecimal":
        return _decimal(value["value"], int(value["scale"]))
    if name in ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date"):
        day = _moment(timedelta(days=value))
        return day.date() if isinstance(day, datetime) else day
    per_second = {"Timestamp": 10**3, "MicroTimestamp": 10**6, "NanoTimestamp": 10**9}.get(short)
    if per_second and isinstance(value, int):
        is_exact = value * 10**6 % per_second == 0
        return _moment(timedelta(microseconds=value * 10**6 // per_second)) if is_exact else UNREADABLE
    if short == "ZonedTimestamp":
        return _zoned(value)
    if name.startswith(("io.debezium.time.", "org.apache.kafka.connect.data.Time")) and isinstance(value, int):
        unit = {"Time": 10**3, "MicroTime": 1, "NanoTime": 0}.get(short)
        if short == "Year":
            return value
        if unit is None or value < 0:
            return UNREADABLE
        micros = value * unit if unit else value // 1000
        hours, rest = divmod(micros, 3_600_000_000)
        fraction = f".{rest % 1_000_000:06}" if rest % 1_000_000 else ""
        return f"{hours:02}:{rest // 60_000_000:02}:{rest // 1_000_000 % 60:02}{fraction}"
    if kind == "bytes":
        return base64.b64decode(value) if not name and isinstance(value, str) else UNREADABLE
    if kind in ("struct", "array", "map") or name.startswith("io.debezium.data.geometry"):
        return UNREADABLE
    return value


def _decimal(text: str, scale: int) -> Decimal:
    return Decimal(int.from_bytes(base64.b64decode(text), "big", signed=True)).scaleb(-scale)


def _moment(since: timedelta) -> Any:
    try:
        return EPOCH + since
    except OverflowError:
        return UNREADABLE


def _zoned(text: Any) -> Any:
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return UNREADABLE
    return UNREADABLE if FRACTION.search(text) else moment


def _json(text: str | bytes) -> Any:
    def exact(number: str) -> float | Decimal:
        return float(number) if repr(float(number)) == number else Decimal(number)

    return json.loads(text, parse_float=exact)
