"""Values of few rows without Spark: they rule out what cannot be, of large files by parts, and never what is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyroaring import BitMap64
from pyspark.sql import SparkSession

from lakegate.delta.jvm import Jvm
from lakegate.rows import parquet_probe
from lakegate.rows.conflict.data_skipping import Among, Both, Compared, Condition
from lakegate.rows.small_file_cache import Remembered, TableFiles

ROWS, GROUP = 60_000, 20_000
COLUMNS = {"k": "k", "s": "col-s", "a.b": "a.b"}
"""Name → name in the file."""


class CountingJvm(Jvm):
    """Counts the bytes that are read."""

    read = 0

    def read_below(self, folder: Any, name: str) -> bytes | None:
        content = super().read_below(folder, name)
        self.read += len(content or b"")
        return content

    def read_range(self, path: Any, offset: int, length: int) -> bytes:
        content = super().read_range(path, offset, length)
        self.read += len(content)
        return content


@pytest.fixture
def jvm(session: SparkSession) -> CountingJvm:
    return CountingJvm(session)


def write(folder: Path, rows: int, name: str = "part one.parquet") -> dict[str, Any]:
    """A file of several row groups; the `add` that names it."""
    numbers = range(rows)
    table = pa.table(
        {
            "k": pa.array([None if k % 7 == 3 else k * 10 for k in numbers], pa.int64()),
            "col-s": [f"name-{k}" for k in numbers],
            "a.b": pa.array([k % 5 for k in numbers], pa.int32()),
            "other": [f"{k:0200d}" for k in numbers],
        }
    )
    parquet.write_table(table, folder / name, row_group_size=GROUP)
    return {"path": name.replace(" ", "%20"), "size": (folder / name).stat().st_size}


def holds(jvm: Jvm, folder: Path, file: dict[str, Any], condition: Condition, positions: BitMap64 | None) -> bool:
    files = TableFiles(jvm, jvm.absolute(folder.as_uri()), Remembered())
    return parquet_probe.may_have(files, condition, file, COLUMNS, positions)


@pytest.mark.slow
def test_few_rows_of_a_large_file_are_read_by_their_columns(jvm: CountingJvm, tmp_path: Path) -> None:
    """Rows at positions in any row group are distinguished by their values; only a part of the file is read."""
    file = write(tmp_path, ROWS)
    generator = random.Random(7)
    for place in (0, GROUP - 1, GROUP, ROWS - 1, *generator.sample(range(ROWS), 6)):
        around = BitMap64({place, *generator.sample(range(ROWS), 3)})
        named = Compared("s", "string", "EqualTo", f"name-{place}")
        assert holds(jvm, tmp_path, file, named, around)
        assert not holds(jvm, tmp_path, file, named, around - BitMap64({place}))
        numbered = Both(Among("k", "long", (place * 10, -1)), Compared("a.b", "integer", "EqualTo", place % 5))
        assert holds(jvm, tmp_path, file, numbered, around) == (place % 7 != 3)
        other = Both(Among("k", "long", (place * 10, -1)), Compared("a.b", "integer", "EqualTo", (place + 1) % 5))
        assert not holds(jvm, tmp_path, file, other, around)
    jvm.read = 0
    holds(jvm, tmp_path, file, Among("k", "long", (5,)), BitMap64({3}))
    assert 0 < jvm.read < file["size"] / 4


def test_what_is_too_much_is_left_to_spark(jvm: CountingJvm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many rows, columns that are too large, all rows of a large file: it may hold, and nothing much is read."""
    file = write(tmp_path, ROWS)
    never = Among("k", "long", (-1,))
    assert not holds(jvm, tmp_path, file, never, BitMap64({3}))
    assert holds(jvm, tmp_path, file, never, BitMap64(range(parquet_probe.ROWS_MAX + 1)))
    jvm.read = 0
    assert holds(jvm, tmp_path, file, never, None)
    assert jvm.read == 0
    monkeypatch.setattr(parquet_probe, "BYTES_MAX", 10_000)
    assert holds(jvm, tmp_path, file, never, BitMap64({3}))


def test_a_small_file_is_read_whole(jvm: CountingJvm, tmp_path: Path) -> None:
    """All its rows are looked at."""
    file = write(tmp_path, 50)
    assert holds(jvm, tmp_path, file, Among("k", "long", (110,)), None)
    assert not holds(jvm, tmp_path, file, Among("k", "long", (111,)), None)
    assert jvm.read == 2 * file["size"]


def test_a_string_of_any_bytes_may_be_anything(jvm: CountingJvm, tmp_path: Path) -> None:
    """Spark keeps and compares bytes that are no text."""
    strings = pa.array([b"ok", b"\xff\xfe"], pa.binary()).cast(pa.string(), safe=False)
    parquet.write_table(pa.table({"col-s": strings}), tmp_path / "raw.parquet")
    file = {"path": "raw.parquet", "size": (tmp_path / "raw.parquet").stat().st_size}
    assert holds(jvm, tmp_path, file, Compared("s", "string", "EqualTo", "other"), None)


def test_a_file_that_is_gone_or_damaged_may_hold_anything(jvm: CountingJvm, tmp_path: Path) -> None:
    """Spark will say what is wrong with it."""
    file = write(tmp_path, ROWS)
    never = Among("k", "long", (-1,))
    (tmp_path / "part one.parquet").write_bytes(b"x" * int(file["size"]))
    assert holds(jvm, tmp_path, file, never, BitMap64({3}))
    (tmp_path / "part one.parquet").unlink()
    assert holds(jvm, tmp_path, file, never, BitMap64({3}))
    assert holds(jvm, tmp_path, {**file, "size": 100}, never, None)
