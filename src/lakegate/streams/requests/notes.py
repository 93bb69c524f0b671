"""Notes beside a table of the request tables that stand for it: `<table>/_lakegate/standing/<stream>.json`.

A request table lies in a pipeline's storage; the rows that it keeps away lie in the table. A note lies with the rows, so that a
request table that was moved, lost, made anew or set back is missed by whoever writes to the table, with whatever file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from lakegate.delta.jvm import JVM_ERRORS, Jvm
from lakegate.delta.ownership import FOLDER, unreachable
from lakegate.errors import Corrupt, InvalidRequest
from lakegate.ids import TableLocation, Version
from lakegate.stored_json import parsed

FORMAT = 1
SUBFOLDER, ENDING = "standing", ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNote:
    """What the note of one stream says."""

    stream: str
    kind: str
    """`erase`, `mutate arrived` or `mutate arrived_and_later`."""
    location: TableLocation
    """Of the request table."""
    table_id: str | None
    """Delta's id of it; None where a person has said to go on without it."""
    version: Version
    """That it had when the stream's last run began."""
    accepted_ms: int = 0
    """When a person said to go on with what is there; what was recorded before is not asked for any more."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Token id → batch up to which it is not asked for."""
    reason: str = ""
    """Why, as the person has said."""


def read_notes(spark: SparkSession, table: TableLocation) -> dict[str, RequestNote]:
    """Stream → its note.

    Raises:
        InvalidRequest: A note was written by a newer version.
        Corrupt: One cannot be parsed.
        Unavailable: The table's folder could not be read.
    """
    jvm = Jvm(spark)
    try:
        log = jvm.delta_log(table)
        folder = _folder(jvm, log)
        names = jvm.names(folder.getFileSystem(jvm.hadoop_conf), folder)
        texts = {name: jvm.read_text(log, jvm.path(folder, name)) for name in sorted(names) if _is_note(name)}
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error
    notes = [_parsed(table, name, text) for name, text in texts.items() if text is not None]
    return {note.stream: note for note in notes}


def write_note(spark: SparkSession, table: TableLocation, note: RequestNote) -> None:
    """Puts a stream's note in place of the one that is there. Only in a turn, or by a person.

    Raises:
        Unavailable: It could not be written.
    """
    jvm = Jvm(spark)
    try:
        log = jvm.delta_log(table)
        folder = _folder(jvm, log)
        folder.getFileSystem(jvm.hadoop_conf).mkdirs(folder)
        text = json.dumps({"format": FORMAT, **asdict(note)})
        log.store().write(jvm.path(folder, note.stream + ENDING), jvm.to_seq([text]).iterator(), True, jvm.hadoop_conf)
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error


def drop_note(spark: SparkSession, table: TableLocation, stream: str) -> None:
    """Removes a stream's note.

    Raises:
        Unavailable: It could not be removed.
    """
    jvm = Jvm(spark)
    try:
        path = jvm.path(_folder(jvm, jvm.delta_log(table)), stream + ENDING)
        path.getFileSystem(jvm.hadoop_conf).delete(path, False)
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error


def delete_table(spark: SparkSession, table: TableLocation) -> None:
    """Deletes a request table that another one has taken the place of, with its folder.

    Raises:
        Unavailable: It could not be deleted.
    """
    jvm = Jvm(spark)
    try:
        path = jvm.delta_log(table).dataPath()
        path.getFileSystem(jvm.hadoop_conf).delete(path, True)
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error


def _folder(jvm: Jvm, log: Any) -> Any:
    return jvm.path(jvm.path(log.dataPath(), FOLDER), SUBFOLDER)


def _is_note(name: str) -> bool:
    return name.endswith(ENDING) and not name.startswith(".")


def _parsed(table: TableLocation, name: str, text: str) -> RequestNote:
    try:
        data = parsed(text)
        if int(data["format"]) > FORMAT:
            raise InvalidRequest(
                "a note of standing requests was written by a newer version of Lakegate; nothing was written",
                advice="Use that version",
                table=table,
                note=name,
            )
        return RequestNote(
            stream=str(data["stream"]),
            kind=str(data["kind"]),
            location=TableLocation(str(data["location"])),
            table_id=None if data["table_id"] is None else str(data["table_id"]),
            version=Version(int(data["version"])),
            accepted_ms=int(data.get("accepted_ms", 0)),
            reason=str(data.get("reason", "")),
            batches={str(one): int(batch) for one, batch in dict(data.get("batches", {})).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupt(
            "a note of standing requests cannot be read; nothing was written",
            advice=f"Restore it from a backup: {table}/{FOLDER}/{SUBFOLDER}/{name}",
            table=table,
        ) from error
