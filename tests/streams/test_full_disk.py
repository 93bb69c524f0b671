"""A full disk below a stream's table or its storage: one clear error, nothing half written, each row once afterwards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

import lakegate as lg
from harness.disks import small_disk
from lakegate.errors import Unavailable


@pytest.mark.slow
@pytest.mark.parametrize("full", ["table", pytest.param("storage", marks=pytest.mark.matrix)])
def test_a_stream_on_a_full_disk_ends_clearly_and_goes_on_when_there_is_room(
    session: SparkSession, tmp_path: Path, full: str
) -> None:
    """The records come from another disk, and stay."""
    source = tmp_path / "in"
    source.mkdir()
    with small_disk(tmp_path / "small", "8m") as disk:
        if not disk.is_mounted:
            pytest.skip("no disk can be mounted here")
        places = {"table": tmp_path / "table", "storage": tmp_path / "storage", full: disk.folder / full}
        made = lg.Pipeline("p", storage=str(places["storage"]))
        made.table("t", path=str(places["table"])).append(name="S", source=lg.files(str(source)))
        for number in range(3):
            parquet.write_table(
                pa.table({"id": range(number * 1000, number * 1000 + 1000)}), source / f"{number}.parquet"
            )
            if number == 1:
                disk.fill()
                with pytest.raises(Unavailable, match=r"a disk is full|No space left") as ended:
                    made.run(until_idle=True, spark=session)
                assert len(str(ended.value).splitlines()) == 1
                disk.make_room()
            else:
                made.run(until_idle=True, spark=session)
        rows = session.read.format("delta").load(str(places["table"])).collect()
    assert sorted(row.id for row in rows) == list(range(3000))
