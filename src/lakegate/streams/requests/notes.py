"""Notes stored next to a table about its request tables: `<table>/_lakegate/standing/<stream>.json`.

A request table is in the storage of a pipeline, but its requests apply to the rows of the table. The note is stored with the
rows. So every process that writes to the table, with whatever file, notices a request table that was moved, lost, created again
or restored from an old copy.
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
    """The content of the note of one stream."""

    stream: str
    kind: str
    """`erase`, `mutate arrived` or `mutate arrived_and_later`."""
    location: TableLocation
    """The path of the request table."""
    table_id: str | None
    """Delta's id of the request table; None where a person has decided to go on without it."""
    version: Version
    """Version of the request table when the stream's last run began."""
    accepted_ms: int = 0
    """When a person accepted the present state; requests recorded earlier are not checked any more."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Token id → the last batch that is not checked any more."""
    reason: str = ""
    """The reason that the person gave."""


def read_notes(spark: SparkSession, table: TableLocation) -> dict[str, RequestNote]:
    """Returns stream → its note.

    Raises:
        InvalidRequest: A note was written by a newer version.
        Corrupt: A note cannot be parsed.
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
    """Writes a stream's note, replacing the present one. Call it only in a turn, or on behalf of a person.

    Raises:
        Unavailable: The note could not be written.
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
        Unavailable: The note could not be removed.
    """
    jvm = Jvm(spark)
    try:
        path = jvm.path(_folder(jvm, jvm.delta_log(table)), stream + ENDING)
        path.getFileSystem(jvm.hadoop_conf).delete(path, False)
    except JVM_ERRORS as error:
        raise unreachable(table, error) from error


def delete_table(spark: SparkSession, table: TableLocation) -> None:
    """Deletes a request table that another one has replaced, with its folder.

    Raises:
        Unavailable: The table could not be deleted.
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
