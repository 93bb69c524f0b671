"""Files that may still hold erased rows are counted from names, times and the log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from lakegate.delta.local_files import LocalLog
from lakegate.ops.erasure import bytes_left
from tests.ops.lake import Lake

LATER_S = 5_000.0


def erased(lake: Lake, *actions: dict[str, Any]) -> int:
    """A commit in which the stream `TTL` removed rows."""
    said = {"lakegate": 1, "lock": "L", "job": "TTL", "epoch": 9, "batch": 0, "step": "apply", "offsets": None}
    return lake.commit(*actions, info={"userMetadata": json.dumps(said), "timestamp": 2_000_000})


def put(lake: Lake, name: str, *, is_later: bool = False) -> None:
    """A data file from before the erasure, or after it."""
    file = lake.table / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"data")
    at_s = LATER_S if is_later else 1_000.0
    os.utime(file, (at_s, at_s))


def add(path: str, *, hides: bool = False) -> dict[str, Any]:
    vector = {"deletionVector": {"storageType": "u", "cardinality": 1}} if hides else {}
    return {"add": {"path": path, "size": 4, "dataChange": True, **vector}}


def made(root: Path) -> Lake:
    """Files a, b, c; the erasure hides a row of a, rewrites b as d, and never touches c."""
    lake = Lake(root)
    lake.commit({"metaData": {"id": "t", "schemaString": "{}"}}, add("org=x%20y/a.parquet"), add("b.parquet"))
    lake.commit(add("c.parquet"))
    erased(
        lake,
        {"remove": {"path": "org=x%20y/a.parquet"}},
        {"remove": {"path": "b.parquet"}},
        add("org=x%20y/a.parquet", hides=True),
        add("d.parquet"),
    )
    for name in ("org=x y/a.parquet", "b.parquet", "c.parquet", "_change_data/before.parquet"):
        put(lake, name)
    for name in ("d.parquet", "being-written.parquet", "_change_data/later.parquet"):
        put(lake, name, is_later=True)
    return lake


def test_files_that_may_hold_erased_rows_are_counted_and_no_others(tmp_path: Path) -> None:
    """Hidden rows, older versions and the change feed count; untouched files, and files written later, do not."""
    left = bytes_left("TTL", LocalLog(made(tmp_path).table), [])
    assert left is not None
    assert (left.version, left.with_deletion_vectors, left.removed, left.change_data) == (2, 1, 1, 1)
    assert str(left) == (
        "logically erased at version 2; bytes of what was erased since 1970-01-01 00:33 UTC still in 3 files until "
        "REORG TABLE … APPLY (PURGE), then VACUUM, have been run by hand (1 with hidden rows, 4 bytes; 1 of older versions, "
        "4 bytes; 1 of the change feed, 4 bytes)"
    )


def upkeep(lake: Lake, step: str, at_ms: int, *actions: dict[str, Any], **facts: Any) -> int:
    """A commit in which the stream `TTL` looked after the table's files."""
    said = {
        "lakegate": 1,
        "lock": "L",
        "job": "TTL",
        "epoch": 9,
        "batch": 0,
        "step": step,
        "offsets": None,
        "user": facts,
    }
    return lake.commit(*actions, info={"userMetadata": json.dumps(said), "timestamp": at_ms})


def test_the_line_says_until_when_the_stream_deletes_them(tmp_path: Path) -> None:
    """`physical_within` counts from the oldest erasure that is not purged and vacuumed, a purge alone does not end it."""
    lake = made(tmp_path)
    log, within_ms = LocalLog(lake.table), 86_400_000

    def deadlines() -> tuple[int | None, int | None]:
        left = bytes_left("TTL", log, [], within_ms=within_ms)
        assert left is not None
        return left.since_ms, left.until_ms

    assert deadlines() == (2_000_000, 2_000_000 + within_ms)
    moved = ({"remove": {"path": "org=x%20y/a.parquet", "dataChange": False}}, add("e.parquet"))
    upkeep(lake, "purge", 2_500_000, *moved, at=2, hidden_ms=None, purged=[], covers_ms=2_000_000)
    assert deadlines() == (2_000_000, 2_000_000 + within_ms)
    assert "1970-01-02 00:33 UTC" in str(bytes_left("TTL", log, [], within_ms=within_ms))
    erased(lake, {"remove": {"path": "c.parquet"}}, add("c.parquet", hides=True))
    upkeep(lake, "vacuum", 3_500_000, at=4, hidden_ms=2_000_000, purged=[])
    assert deadlines() == (2_000_000, 2_000_000 + within_ms)
    upkeep(lake, "purge", 3_600_000, at=5, hidden_ms=None, purged=[], covers_ms=2_000_000)
    upkeep(lake, "vacuum", 4_500_000, at=6, hidden_ms=None, purged=[])
    assert deadlines() == (None, None)


def test_after_purge_and_vacuum_nothing_is_left(tmp_path: Path) -> None:
    """REORG rewrites the file, VACUUM deletes the old files: the line says that no file is left."""
    lake = made(tmp_path)
    lake.commit({"remove": {"path": "org=x%20y/a.parquet"}}, add("e.parquet"))
    put(lake, "e.parquet", is_later=True)
    for name in ("org=x y/a.parquet", "b.parquet", "_change_data/before.parquet"):
        (lake.table / name).unlink()
    left = bytes_left("TTL", LocalLog(lake.table), [])
    assert str(left) == "logically erased at version 2; no file that may hold the bytes is left"


def test_request_tables_count_too(tmp_path: Path) -> None:
    """They name the erased keys."""
    lake, requests = made(tmp_path / "one"), Lake(tmp_path / "two")
    requests.commit({"metaData": {"id": "r", "schemaString": "{}"}}, add("a.parquet", hides=True))
    put(requests, "a.parquet")
    put(requests, "old.parquet")
    left = bytes_left("TTL", LocalLog(lake.table), [LocalLog(requests.table), LocalLog(tmp_path / "none")])
    assert left is not None
    assert (left.in_requests, left.files) == (2, 5)


def test_a_stream_that_has_erased_nothing_says_nothing(tmp_path: Path) -> None:
    """Another stream's commits are not its erasures."""
    assert bytes_left("Other", LocalLog(made(tmp_path).table), []) is None


def test_a_log_that_was_cleaned_up_is_read_from_its_checkpoint(tmp_path: Path) -> None:
    """Live files and the definition come from the Parquet checkpoint where the commits before it are gone."""
    lake = made(tmp_path)
    row = {
        "add": [
            None,
            {"path": "org=x%20y/a.parquet", "deletionVector": None},
            {"path": "b.parquet", "deletionVector": None},
        ],
        "metaData": [{"schemaString": "{}", "partitionColumns": ["org"], "configuration": [("k", "v")]}, None, None],
    }
    types = {
        "add": pa.struct([("path", pa.string()), ("deletionVector", pa.struct([("cardinality", pa.int64())]))]),
        "metaData": pa.struct(
            [
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", pa.map_(pa.string(), pa.string())),
            ]
        ),
    }
    whole = LocalLog(lake.table).live_files()
    columns = {name: pa.array(values, types[name]) for name, values in row.items()}
    parquet.write_table(pa.table(columns), lake.log / f"{0:020d}.checkpoint.parquet")
    lake.commit_file(0).unlink()
    log = LocalLog(lake.table)
    assert log.live_files() == whole
    definition = log.definition()
    assert definition is not None
    assert (definition.partition_columns, definition.properties) == (("org",), {"k": "v"})
