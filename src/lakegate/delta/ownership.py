"""The note that makes a table governed: `<table>/_lakegate/table.json`, next to the data and outside Delta's log.

Writing or removing the note commits nothing. VACUUM skips folders whose names begin with an underscore.
Source: docs/explanation/turns.md, "Governed tables".
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from lakegate.config.coordinators import is_same_place
from lakegate.delta.gate import Gate
from lakegate.delta.jvm import JVM_ERRORS, Jvm, first_line
from lakegate.errors import Corrupt, InvalidRequest, Unavailable, UnsupportedTable
from lakegate.ids import TableLocation
from lakegate.stored_json import parsed

FORMAT = 1
FOLDER, FILE = "_lakegate", "table.json"
FORGETTING = "delta.setTransactionRetentionDuration"
"""With this property Delta expires tokens: a late writer would not be refused, and a repeated batch would be written twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedTable:
    """The content of the note."""

    lock: str
    coordinator_id: str
    """UUID that was made with the turn store's data."""
    coordinator: str | None = None
    """Place of that store, as `coordinator_place` returns it; None in notes of versions that did not write it."""
    log_store: str
    """How a commit is written only if its version is free: `link`, `conditional`, `dynamodb`, `single_driver` or `stock`."""
    log_store_args: Mapping[str, str] = field(default_factory=dict)
    """E.g. table and region of a DynamoDB store: writers with different values do not see each other."""
    created_at_ms: int
    others: Mapping[str, Any] = field(default_factory=dict)
    """Keys that this version does not know, unchanged."""


def read_governed(spark: SparkSession, table: TableLocation) -> GovernedTable | None:
    """Reads the table's note; None if the table is not governed.

    Raises:
        InvalidRequest: A newer version wrote the note.
        Corrupt: The note cannot be parsed.
        Unavailable: The note could not be read.
    """
    jvm = Jvm(spark)
    try:
        # Read as the gate reads it: a failed lookup does not count as a table without a note.
        text = Gate(spark).note(str(jvm.delta_log(table).dataPath().toString()))
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error
    return None if text is None else _parsed(table, text)


def write_governed(spark: SparkSession, table: TableLocation, note: GovernedTable) -> GovernedTable:
    """Writes the note if there is none; returns the note that exists afterwards, ours or another's.

    The table's own log store writes it: if several writers try, in any processes, exactly one succeeds.

    Raises:
        InvalidRequest, Corrupt, Unavailable: As for `read_governed`; or the table's folder cannot be written.
    """
    known = {
        "format": FORMAT,
        "lock": note.lock,
        "coordinator_id": note.coordinator_id,
        "log_store": note.log_store,
        "log_store_args": dict(note.log_store_args),
        "created_at_ms": note.created_at_ms,
    }
    if note.coordinator is not None:
        known["coordinator"] = note.coordinator
    jvm = Jvm(spark)
    try:
        log = jvm.delta_log(table)
        jvm.put_text_if_absent(log, _note_path(jvm, log), json.dumps({**note.others, **known}))
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error
    found = read_governed(spark, table)
    if found is None:
        raise Unavailable("the note that makes a table governed was removed while it was written", table=table)
    return found


def adopt(
    spark: SparkSession,
    table: TableLocation,
    lock: str,
    coordinator_id: str,
    log_store: str,
    *,
    coordinator: str | None = None,
    log_store_args: Mapping[str, str] | None = None,
    created_at_ms: int | None = None,
) -> GovernedTable:
    """Makes an existing table governed by `lock`. Changes neither its version nor its data; idempotent.

    Raises:
        InvalidRequest: There is no table; or the table is governed by another lock, coordinator or log store.
        UnsupportedTable: A table property makes Delta expire tokens.
        Corrupt, Unavailable: As for `read_governed`.
    """
    jvm = Jvm(spark)
    try:
        snapshot = jvm.snapshot(jvm.delta_log(table))
        is_table = snapshot.version() >= 0
        properties = jvm.from_map(snapshot.metadata().configuration()) if is_table else {}
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error
    if not is_table:
        raise InvalidRequest("there is no Delta table here; nothing was changed", table=table)
    refuse_forgetting(table, properties)
    note = GovernedTable(
        lock=lock,
        coordinator_id=coordinator_id,
        coordinator=coordinator,
        log_store=log_store,
        log_store_args=log_store_args or {},
        created_at_ms=int(time.time() * 1000) if created_at_ms is None else created_at_ms,
    )
    found = write_governed(spark, table, note)
    compare(table, found, lock, coordinator_id, log_store, coordinator=coordinator, log_store_args=log_store_args)
    return found


def release(spark: SparkSession, table: TableLocation) -> bool:
    """Removes the note: the table is no longer governed. Its tokens stay in the log. Returns False if there was no note.

    Raises:
        Unavailable: The note could not be removed.
    """
    jvm = Jvm(spark)
    try:
        log = jvm.delta_log(table)
        path = _note_path(jvm, log)
        files = path.getFileSystem(jvm.hadoop_conf)
        was_there = bool(files.delete(path, False))
        if files.exists(path.getParent()) and not list(files.listStatus(path.getParent())):
            files.delete(path.getParent(), False)
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error
    return was_there


def compare(
    table: TableLocation,
    found: GovernedTable,
    lock: str,
    coordinator_id: str | None,
    log_store: str,
    *,
    coordinator: str | None = None,
    log_store_args: Mapping[str, str] | None = None,
) -> str | None:
    """Returns a warning about a harmless difference between the note and this driver; None if there is none.

    Args:
        table: The table's location.
        found: The table's note.
        lock: This driver's.
        coordinator_id: Id of the data of this driver's turn store; None if the store has no data yet.
        log_store: How this driver writes commits.
        coordinator: Place of its turn store, as `coordinator_place` returns it; None: unknown.
        log_store_args: Further values that distinguish log stores.

    Raises:
        InvalidRequest: With this driver's lock, coordinator or log store, writers would not see each other.
    """
    if found.lock != lock:
        raise InvalidRequest(
            "the table is governed by another lock; nothing was written",
            advice="Name the same lock in every pipeline that writes to this table, or release it first: "
            "lakegate adopt TABLE --release",
            table=table,
            lock=found.lock,
            wanted=lock,
        )
    store, args = (found.log_store, dict(found.log_store_args)), dict(log_store_args or {})
    if store != (log_store, args):
        raise InvalidRequest(
            "the table is governed with another store of commits; nothing was written",
            advice="Two stores do not see each other's commits: use the same `log_store` in every driver",
            table=table,
            log_store=f"{found.log_store} {store[1] or ''}".strip(),
            wanted=f"{log_store} {args or ''}".strip(),
        )
    if found.coordinator_id == coordinator_id:
        return None
    if found.coordinator is not None and coordinator is not None and not is_same_place(found.coordinator, coordinator):
        raise InvalidRequest(
            "the table takes its turns at another coordinator; nothing was written",
            advice="Two coordinators do not see each other's turns: name the same in every job. If the turns have moved, stop all "
            "jobs, take the note off with lakegate adopt TABLE --release, and start them",
            table=table,
            coordinator=found.coordinator,
            wanted=coordinator,
        )
    if coordinator_id is not None:
        return (
            f"{table} was governed by a turn store with other data (coordinator {found.coordinator_id}, now "
            f"{coordinator_id}): that store was lost or exchanged; turns go on above every epoch in the table"
        )
    return None


def refuse_forgetting(table: TableLocation, properties: Mapping[str, str]) -> None:
    """Checks that Delta never expires tokens.

    Raises:
        UnsupportedTable: A table property makes Delta expire them.
    """
    if FORGETTING in properties:
        raise UnsupportedTable(
            f"the table has {FORGETTING}, with which Delta forgets who may write; nothing was changed",
            advice=f"ALTER TABLE … UNSET TBLPROPERTIES ('{FORGETTING}')",
            table=table,
        )


def _note_path(jvm: Jvm, log: Any) -> Any:
    return jvm.path(jvm.path(log.dataPath(), FOLDER), FILE)


def _parsed(table: TableLocation, text: str) -> GovernedTable:
    try:
        data = parsed(text)
        written_format = int(data.pop("format"))
        if written_format > FORMAT:
            raise InvalidRequest(
                "the table is governed by a newer version of Lakegate; nothing was written",
                advice="Use that version",
                table=table,
                format=written_format,
            )
        return GovernedTable(
            lock=str(data.pop("lock")),
            coordinator_id=str(data.pop("coordinator_id")),
            coordinator=None if (place := data.pop("coordinator", None)) is None else str(place),
            log_store=str(data.pop("log_store")),
            log_store_args=dict(data.pop("log_store_args", {})),
            created_at_ms=int(data.pop("created_at_ms")),
            others=data,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt(
            "the note that makes a table governed cannot be read; nothing was written",
            advice=f"Look at it: {table}/{FOLDER}/{FILE}",
            table=table,
        ) from error


def unreachable(table: str, error: BaseException) -> Unavailable:
    """Returns the error for a note that cannot be read or written."""
    return Unavailable("the table's folder does not answer", table=table, reason=first_line(error))
