"""Kept requests by age, from the files of a request table: rows that a deletion vector hides do not count."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyroaring import BitMap64

from lakegate.delta import deletion_vectors
from lakegate.delta.local_files import LocalLog
from lakegate.errors import Unavailable
from lakegate.ops.stored_requests import DAY_MS, HOUR_MS, kept, set_aside

NOW_MS = 1_800_000_000_000


def put(
    table: Path,
    version: int,
    *adds: tuple[str, str, list[int], dict[str, object] | None],
    column: str = "first_seen_ms",
) -> None:
    """A commit that adds files: name, state, ages of its rows in milliseconds, deletion vector."""
    lines: list[dict[str, object]] = [{"commitInfo": {}}]
    if version == 0:
        lines.append({"metaData": {"id": "t", "schemaString": "{}", "partitionColumns": ["state"]}})
    for name, state, ages, vector in adds:
        file = table / f"state={state}" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pa.table({column: [NOW_MS - age for age in ages]}), file)
        add: dict[str, object] = {"path": f"state={state}/{name}", "partitionValues": {"state": state}, "size": 1}
        lines.append({"add": {**add, **({} if vector is None else {"deletionVector": vector})}})
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(line) for line in lines))


def test_requests_are_counted_by_state_and_age(tmp_path: Path) -> None:
    """Those that wait and those that are dead; settled ones are not kept."""
    put(
        tmp_path,
        0,
        ("a.parquet", "waiting", [0, HOUR_MS - 1, HOUR_MS, 40 * DAY_MS], None),
        ("b.parquet", "applied", [1, 2, 3], None),
        ("c.parquet", "dead", [2 * DAY_MS], None),
    )
    waiting, dead = kept(LocalLog(tmp_path), NOW_MS)
    assert (waiting.state, waiting.requests, waiting.oldest_ms) == ("waiting", 4, NOW_MS - 40 * DAY_MS)
    assert waiting.ages == {"1h": 2, "1d": 1, "7d": 0, "30d": 0, "older": 1}
    assert (dead.state, dead.ages["7d"]) == ("dead", 1)


def test_rows_that_a_deletion_vector_hides_do_not_count(tmp_path: Path) -> None:
    """The vector is in the log itself, or in a file next to the data."""
    inline = deletion_vectors.write_inline(BitMap64([0, 2]))
    content, (beside,) = deletion_vectors.write([BitMap64([1])], bytes(range(16)))
    put(
        tmp_path,
        0,
        ("a.parquet", "waiting", [5 * DAY_MS, 1, 6 * DAY_MS], inline),
        ("b.parquet", "waiting", [2, 9 * DAY_MS], beside),
    )
    (tmp_path / (deletion_vectors.location(beside) or "")).write_bytes(content)
    (waiting,) = kept(LocalLog(tmp_path), NOW_MS)
    assert (waiting.requests, waiting.oldest_ms, waiting.ages["1h"]) == (2, NOW_MS - 2, 2)


def test_dead_letters_are_counted_by_age(tmp_path: Path) -> None:
    """Without those that were sent again or dropped; none where nothing was ever set aside."""
    assert set_aside(LocalLog(tmp_path), NOW_MS) is None
    inline = deletion_vectors.write_inline(BitMap64([0]))
    put(tmp_path, 0, ("a.parquet", "x", [9 * DAY_MS, 2 * HOUR_MS, 1], inline), column="at_ms")
    found = set_aside(LocalLog(tmp_path), NOW_MS)
    assert found is not None
    assert (found.requests, found.oldest_ms, found.ages["1h"], found.ages["1d"]) == (2, NOW_MS - 2 * HOUR_MS, 1, 1)
    put(tmp_path, 0, ("b.parquet", "x", [], None), column="at_ms")
    assert set_aside(LocalLog(tmp_path), NOW_MS) is None


def test_a_missing_table_keeps_nothing_and_a_missing_file_is_reported(tmp_path: Path) -> None:
    """Never a count that leaves requests out unsaid."""
    assert kept(LocalLog(tmp_path / "none"), NOW_MS) == ()
    put(tmp_path, 0, ("a.parquet", "waiting", [1], None))
    (tmp_path / "state=waiting" / "a.parquet").unlink()
    with pytest.raises(Unavailable, match=r"a\.parquet"):
        kept(LocalLog(tmp_path), NOW_MS)
