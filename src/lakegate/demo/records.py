"""The input of the demo's three streams: engagements, requests to re-identify, requests to erase; as Arrow tables.

The columns are those of `shared/data/engagement`, so that generated records and real ones are processed alike.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from lakegate.errors import InvalidRequest

INSTANT = pa.timestamp("us", tz="UTC")

ENGAGEMENTS = pa.schema(
    [
        ("engagement_id", pa.string()),
        ("source", pa.string()),
        ("org_id", pa.string()),
        ("alias_id", pa.string()),
        ("role", pa.string()),
        ("engagement_type", pa.string()),
        ("engagement_time", INSTANT),
        ("arrival_time", INSTANT),
        ("arrival_seq", pa.int64()),
        ("thread_id", pa.string()),
        ("subject", pa.string()),
        ("payload", pa.string()),
    ]
)
MUTATIONS = pa.schema(
    [
        ("mutation_id", pa.string()),
        ("source", pa.string()),
        ("seq", pa.int64()),
        ("request_time", INSTANT),
        ("alias_id", pa.string()),
        ("new_person_id", pa.string()),
    ]
)
ERASURES = pa.schema(
    [
        ("request_id", pa.string()),
        ("source", pa.string()),
        ("request_time", INSTANT),
        ("person_id", pa.string()),
        ("reason", pa.string()),
    ]
)
FOLDERS = ("ingest", "mutation", "delete")
"""Folders of the three streams' files, in the order of `Inputs`."""

TOPIC_COLUMNS = {
    "ingest": (
        "engagement_id STRING, source STRING, org_id STRING, alias_id STRING, role STRING, engagement_type STRING, "
        "engagement_time TIMESTAMP, arrival_time TIMESTAMP, arrival_seq BIGINT, thread_id STRING, subject STRING, "
        "payload STRING"
    ),
    "mutation": "mutation_id STRING, seq BIGINT, alias_id STRING, new_person_id STRING",
    "delete": "request_id STRING, person_id STRING",
}
"""Kafka topic → the columns of its records, for inputs from Kafka."""
BATCH_OFFSETS = {"ingest": 400, "mutation": 4, "delete": 1}
"""Topic → the number of its records in a micro-batch of the jobs without turns."""

FIRST_FILE_AT_S = 1_700_000_000
"""Modification time of a stream's first file. Files are read in that order, so their times differ by a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The whole input, each table in the order of arrival."""

    engagements: pa.Table
    mutations: pa.Table
    erasures: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The number of files for each stream's records; a file is a micro-batch."""

    ingest: int
    mutation: int
    delete: int


def read_inputs(folder: Path, source: str) -> Inputs:
    """Reads the records of one source: `ingest/SOURCE.parquet`, `mutation/…`, `delete/…`; the last two may be missing.

    Raises:
        InvalidRequest: `ingest/SOURCE.parquet` is missing, or a file is not Parquet or lacks a column.
    """
    if not (folder / "ingest" / f"{source}.parquet").is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("ingest/*.parquet")))
        raise InvalidRequest(
            f"there is no file {folder / 'ingest' / source}.parquet; nothing was made",
            advice=f"The sources there are: {known}" if known else "Name a folder with ingest/, mutation/ and delete/",
        )
    return Inputs(
        engagements=_read(folder / "ingest" / f"{source}.parquet", ENGAGEMENTS).sort_by("arrival_seq"),
        mutations=_read(folder / "mutation" / f"{source}.parquet", MUTATIONS).sort_by("seq"),
        erasures=_read(folder / "delete" / f"{source}.parquet", ERASURES).sort_by("request_time"),
    )


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    if not path.is_file():
        return schema.empty_table()
    try:
        return parquet.read_table(path, columns=schema.names).select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowKeyError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidRequest(
            f"{path} is not a file of such records: {reason}; nothing was made",
            advice=f"It needs the columns {', '.join(schema.names)}",
        ) from error


def rows_of_files(inputs: Inputs, cut: Cut) -> tuple[list[int], list[int], list[int]]:
    """Returns the number of rows in each file of each stream, in the order of `FOLDERS`."""

    def rows(table: pa.Table, files: int) -> list[int]:
        each = max(1, -(-table.num_rows // files))
        return [min(each, table.num_rows - start) for start in range(0, table.num_rows, each)] or [0]

    return rows(inputs.engagements, cut.ingest), rows(inputs.mutations, cut.mutation), rows(inputs.erasures, cut.delete)


def write_inputs(inputs: Inputs, folder: Path, cut: Cut) -> dict[str, int]:
    """Writes each stream's records as Parquet files in a folder of its own.

    Returns:
        Folder → rows of its largest file.
    """
    tables = (inputs.engagements, inputs.mutations, inputs.erasures)
    largest: dict[str, int] = {}
    for name, table, files in zip(FOLDERS, tables, rows_of_files(inputs, cut), strict=True):
        (folder / name).mkdir(parents=True)
        largest[name] = max(1, files[0])
        for number, rows in enumerate(files):
            path = folder / name / f"part-{number:04}.parquet"
            parquet.write_table(table.slice(sum(files[:number]), rows), path)
            os.utime(path, (FIRST_FILE_AT_S + number, FIRST_FILE_AT_S + number))
    return largest
