"""The limits of quick statements: large tables, little memory, and versions that several statements share."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.rows.committer import publisher
from lakegate.rows.quick import BYTES_CONF, QUICK_CONF
from lakegate.rows.sql import statement
from tests.delta.delta_tables import foreign_commit, make_table
from tests.waiting import wait_until

Jobs = Callable[[Callable[[], object]], int]
MANY = 2_500
"""More files than Delta's own scans take from a list."""


def test_a_table_of_many_files_needs_no_spark_job_after_the_first_statement(
    session: SparkSession, tmp_path: Path, jobs: Jobs
) -> None:
    """Their list follows the commits, also of others. Without memory for it stock Delta executes the statement."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT", enableDeletionVectors="true")
    session.range(0, 100, 1, 2).selectExpr("id", "id AS v").write.format("delta").mode("append").save(table)
    others = [
        {
            "path": f"other-{number}.parquet",
            "partitionValues": {},
            "size": 1000,
            "modificationTime": 1,
            "dataChange": True,
            "stats": json.dumps(
                {"numRecords": 1, "minValues": {"id": -number}, "maxValues": {"id": -number}, "nullCount": {"id": 0}}
            ),
        }
        for number in range(1, MANY)
    ]
    foreign_commit(table, *({"add": add} for add in others))
    name = f"delta.`{table}`"
    lakegate.sql(session, f"UPDATE {name} SET v = 0 WHERE id = 1")  # its commit writes the number of files
    lakegate.sql(session, f"UPDATE {name} SET v = 0 WHERE id = 2")  # it reads the list
    for text in (
        f"UPDATE {name} SET v = -1 WHERE id IN (3, 70)",
        f"DELETE FROM {name} WHERE id = 4",
        f"DELETE FROM {name} WHERE id = 3",
    ):
        with confs(session, {QUICK_CONF: "on"}):
            assert jobs(partial(lakegate.sql, session, text)) == 0, text
        session.sql(f"INSERT INTO {name} VALUES (1000, 1)")
    with confs(session, {BYTES_CONF: "100000"}):
        done = lakegate.sql(session, f"DELETE FROM {name} WHERE id = 5").lakegate
        assert done.why_stock is not None
        assert BYTES_CONF in done.why_stock
    assert lakegate.sql(session, f"DELETE FROM {name} WHERE id = 6").lakegate.why_stock is None
    left = session.read.format("delta").load(table).where("id >= 0")
    values = {row.id: row.v for row in left.where("id < 1000").collect()}
    expected = {number: number for number in range(100) if number not in (3, 4, 5, 6)} | {1: 0, 2: 0, 70: -1}
    assert values == expected


def test_quick_statements_that_wait_share_a_version(session: SparkSession, tmp_path: Path) -> None:
    """By default; those that stock Delta executes have a version each."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT", enableDeletionVectors="true")
    session.range(0, 40, 1, 2).selectExpr("id", "id AS v").write.format("delta").mode("append").save(table)
    ours = publisher(session)
    for setting, first, versions in (("on", 0, 1), ("off", 10, 3)):
        with confs(session, {QUICK_CONF: setting}):
            texts = [
                f"UPDATE delta.`{table}` SET v = -{number} WHERE id = {number}"
                for number in range(first + 1, first + 4)
            ]
            parsed = [statement(session, text) for text in texts]
            staged = [ours.stage(dml) for dml in parsed if dml is not None]
            line = ours.line(staged[0].dml.table)
            with ThreadPoolExecutor(len(staged)) as pool:
                with line.lock:
                    ends = [pool.submit(ours.finish, one) for one in staged]
                    if setting == "on":
                        wait_until(lambda line=line, waiting=staged: len(line) == len(waiting))
                committed = {end.result().version for end in ends}
        assert len(committed) == versions
    rows = {row.id: row.v for row in session.read.format("delta").load(table).collect()}
    assert rows == {number: -number if number % 10 in (1, 2, 3) and number < 20 else number for number in range(40)}


def test_threads_that_write_to_a_table_do_not_disturb_one_another(session: SparkSession, tmp_path: Path) -> None:
    """Expressions that are prepared once, as those of statistics, keep state when they are evaluated: once for each new file."""
    name = f"delta.`{tmp_path / 't'}`"
    session.sql(f"CREATE TABLE {name} (id BIGINT, p INT) USING delta PARTITIONED BY (p)")

    def insert(number: int) -> str | None:
        rows = ", ".join(f"({number}, {partition})" for partition in range(30))
        why: str | None = lakegate.sql(session, f"INSERT INTO {name} VALUES {rows}").lakegate.why_stock
        return why

    insert(0)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(insert, range(1, 33))) == {None}
    assert session.table(name).count() == 33 * 30
