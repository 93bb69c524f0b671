"""Places of a table in which a test puts the person `bob`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakegate.delta import deletion_vectors
from tests.erasure.written import Written, people


def live(table: Written) -> None:
    table.commit(table.add("b.parquet", people("bob")))


def old_version(table: Written) -> None:
    live(table)
    table.commit({"remove": {"path": "b.parquet", "deletionTimestamp": 5, "dataChange": True}})


def hidden(table: Written) -> None:
    add = table.add("b.parquet", people("ada", "bob"))
    content, (vector,) = deletion_vectors.write([BitMap64([1])], bytes(range(16)))
    location = deletion_vectors.location(vector)
    assert location is not None
    (table.root / location).write_bytes(content)
    table.commit({"add": {**add["add"], "deletionVector": vector}})


def change_data(table: Written) -> None:
    table.file("_change_data/cdc.parquet", people("bob"))
    table.commit({"cdc": {"path": "_change_data/cdc.parquet", "size": 1, "partitionValues": {}, "dataChange": False}})


def orphan(table: Written) -> None:
    table.file("part-unknown.parquet", people("bob"))


def statistics(table: Written) -> None:
    stats = {"numRecords": 2, "minValues": {"person": "bob"}, "maxValues": {"person": "eve"}}
    table.commit(table.add("b.parquet", people("eve"), stats=stats))


def partition_value(table: Written) -> None:
    table.commit(table.add("b.parquet", people("eve"), partitionValues={"person": "bob"}))


def removed_partition_value(table: Written) -> None:
    table.commit({"remove": {"path": "x.parquet", "partitionValues": {"person": "bob"}, "dataChange": True}})


def folder(table: Written) -> None:
    table.file("person=bob/b.parquet", pa.table({"id": [1]}))


def path_in_the_log(table: Written) -> None:
    table.commit({"remove": {"path": "person=bob/x.parquet", "dataChange": True}})


def predicate(table: Written) -> None:
    table.commit(info={"operation": "DELETE", "operationParameters": {"predicate": '["(person#12 = bob)"]'}})


def user_metadata(table: Written) -> None:
    table.commit(info={"userMetadata": '{"who": "we erased bob."}'})


def checkpoint(table: Written) -> None:
    stats = json.dumps({"numRecords": 1, "minValues": {"person": "bob"}})
    add = {"path": "a.parquet", "partitionValues": [], "stats": stats}
    kind = pa.struct(
        [("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string())), ("stats", pa.string())]
    )
    rows = pa.table({"add": pa.array([add], kind)})
    pq.write_table(rows, table.log / "00000000000000000001.checkpoint.parquet")


def parsed_statistics(table: Written) -> None:
    add = {"path": "a.parquet", "stats_parsed": {"minValues": {"person": "bob"}}}
    pq.write_table(
        pa.table({"add": [add]}), table.log / "00000000000000000001.checkpoint.0000000001.0000000002.parquet"
    )


def sidecar(table: Written) -> None:
    (table.log / "_sidecars").mkdir()
    add = {"path": "a.parquet", "partitionValues": [("person", "bob")]}
    kind = pa.struct([("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string()))])
    pq.write_table(pa.table({"add": pa.array([add], kind)}), table.log / "_sidecars" / "s.parquet")


def json_checkpoint(table: Written) -> None:
    action = {"add": {"path": "a.parquet", "stats": json.dumps({"maxValues": {"person": "bob"}})}}
    (table.log / "00000000000000000001.checkpoint.0b-1.json").write_text(json.dumps(action))


def checksum(table: Written) -> None:
    body = {"allFiles": [{"path": "a.parquet", "stats": json.dumps({"minValues": {"person": "bob"}})}]}
    (table.log / "00000000000000000001.crc").write_text(json.dumps(body))


def last_checkpoint(table: Written) -> None:
    body = {"version": 1, "tags": {}, "checkpointSchema": {"comment": "for bob"}}
    (table.log / "_last_checkpoint").write_text(json.dumps(body))


def note(table: Written) -> None:
    (table.root / "_lakegate").mkdir()
    (table.root / "_lakegate" / "requests.json").write_text('{"why": "bob"}')


Plant = Callable[[Written], None]
PLANTED: dict[Plant, tuple[str, ...]] = {
    live: ("live", "rows"),
    old_version: ("old version", "rows"),
    hidden: ("hidden", "rows"),
    change_data: ("change data", "rows"),
    orphan: ("orphan", "rows"),
    statistics: ("commit", "add: statistics"),
    partition_value: ("commit", "add: partition value", "live", "rows"),
    removed_partition_value: ("commit", "remove: partition value"),
    folder: ("orphan", "path", "orphan", "rows"),
    path_in_the_log: ("commit", "remove: path"),
    predicate: ("commit", "commitInfo: operationParameters.predicate"),
    user_metadata: ("commit", "commitInfo: userMetadata.who"),
    checkpoint: ("checkpoint", "add: statistics"),
    parsed_statistics: ("checkpoint", "add: statistics"),
    sidecar: ("checkpoint", "add: partition value"),
    json_checkpoint: ("checkpoint", "add: statistics"),
    checksum: ("log", "allFiles: statistics"),
    last_checkpoint: ("log", "checkpointSchema: comment"),
    note: ("other file", "text"),
}
