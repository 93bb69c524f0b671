"""Quick statements that find their rows by remembered keys: the same rows as stock Delta, without the files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.rows.committer import publisher
from lakegate.rows.quick import BYTES_CONF
from tests.delta.delta_tables import make_table
from tests.rows.two_copies import Pair

Jobs = Callable[[Callable[[], object]], int]
COLUMNS = "id BIGINT, a TINYINT, c STRING, d DATE"
ROWS = (
    "SELECT id, IF(id % 7 = 0, NULL, CAST(id % 11 AS TINYINT)) AS a, IF(id % 5 = 0, NULL, concat('é', id % 13)) AS c, "
    "date_add(DATE'1500-01-01', CAST(id % 9 AS INT)) AS d FROM range(0, 200, 1, 2)"
)
CONDITIONS = (
    "a = 3",
    "a IN (4, 5, NULL)",
    "a <=> 6",
    "c = 'é7'",
    "c IN ('é8', 'e8', 'é9') AND id % 2 = 0",
    "d = DATE'1500-01-03'",
    "d IN (DATE'1500-01-04') AND a = 1",
    "id IN (17, 18, 1000, -1)",
    "id = 19 OR id = 20",
    "CAST(a AS BIGINT) = 7",
    "a = 300",
    "c = 'é1' AND NOT id = 1",
)


def test_remembered_keys_give_the_rows_that_stock_delta_finds(session: SparkSession, tmp_path: Path) -> None:
    """For each type of keys, with repeated keys, NULL, rows that are gone, and rows that were changed."""
    paths = [make_table(session, tmp_path / name, COLUMNS, enableDeletionVectors="true") for name in ("stock", "quick")]
    session.sql(ROWS).write.format("delta").mode("append").save(paths[0])
    for path in paths[1:]:
        session.sql(ROWS).write.format("delta").mode("append").save(path)
    pair = Pair(session, *paths)
    for condition in (
        "a = 0",
        "a = 0",
        "c = 'é0'",
        "c = 'é0'",
        "d = DATE'1500-01-01'",
        "d = DATE'1500-01-01'",
        "id = 1",
        "id = 1",
    ):
        pair.run(f"UPDATE {{t}} SET id = id + 1000 WHERE {condition}")  # from the second time the keys are remembered
    for number, condition in enumerate(CONDITIONS):
        change = ("DELETE FROM {t}", "UPDATE {t} SET a = a + 1")[number % 2]
        assert pair.run(f"{change} WHERE {condition}") is None, condition
    pair.same()


def test_rows_of_a_remembered_key_are_deleted_without_their_file(session: SparkSession, tmp_path: Path) -> None:
    """A file that has moved away shows that it is not read. With no memory for keys it would be, and stock Delta fails."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT", enableDeletionVectors="true")
    session.range(0, 2_000, 1, 1).selectExpr("id % 1000 AS id", "id AS v").write.format("delta").mode("append").save(
        table
    )
    text = f"DELETE FROM delta.`{table}` WHERE id IN ({{}})"
    for ids in ("1, 2", "3"):
        lakegate.sql(session, text.format(ids))
    (file,) = Path(table).glob("*.parquet")
    moved = file.rename(tmp_path / "moved")
    try:
        done = lakegate.sql(session, text.format("4, 5000")).lakegate
        with confs(session, {BYTES_CONF: "1000"}), pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
            lakegate.sql(session, f"DELETE FROM delta.`{table}` WHERE v = 7")
    finally:
        moved.rename(file)
    assert (done.why_stock, done.rows) == (None, 2)
    left = sorted(row.v for row in session.read.format("delta").load(table).collect())
    assert left == [number for number in range(2_000) if number % 1000 not in (1, 2, 3, 4)]


def test_files_that_have_no_row_of_a_key_do_not_count(session: SparkSession, tmp_path: Path, jobs: Jobs) -> None:
    """More small files than a statement reads: those of earlier statements are remembered."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT", enableDeletionVectors="true")
    name = f"delta.`{table}`"
    for first in (0, 1):
        rows = session.range(first, 2_000, 2).repartition(80).selectExpr("id", "id AS v")
        rows.write.format("delta").mode("append").save(table)
        lakegate.sql(session, f"UPDATE {name} SET v = -1 WHERE id = 500")
    text = f"UPDATE {name} SET v = -1 WHERE id IN (600, 601)"
    assert jobs(partial(lakegate.sql, session, text)) == 0
    changed = {row.id for row in session.read.format("delta").load(table).where("v = -1").collect()}
    assert changed == {500, 600, 601}


def test_a_quick_statement_leaves_its_checksum_and_checkpoint_for_later(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some checkpoints are left out while statements are fast, but of ten that are due one is written."""
    table = make_table(session, tmp_path / "t", "id BIGINT", enableDeletionVectors="true", checkpointInterval="2")
    session.range(0, 100, 1, 1).write.format("delta").mode("append").save(table)
    log, left, due = Path(table, "_delta_log"), list[object](), 0
    monkeypatch.setattr(publisher(session), "afterwards", left.append)
    for number in range(50):
        done = lakegate.sql(session, f"DELETE FROM delta.`{table}` WHERE id = {number}").lakegate
        assert done.why_stock is None
        assert not (log / f"{done.version:020}.crc").exists()
        (work,) = left
        left.clear()
        assert callable(work)
        checkpoint = work()
        assert (log / f"{done.version:020}.crc").exists()
        if checkpoint is not None:
            assert not (log / f"{done.version:020}.checkpoint.parquet").exists()
            checkpoint()
            assert (log / f"{done.version:020}.checkpoint.parquet").exists()
        if done.version % 2 == 0:
            due = 0 if checkpoint is not None else due + 1
            assert due < 10
    assert list(log.glob("*.checkpoint.parquet"))
