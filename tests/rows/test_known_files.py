"""The files of small tables, known from those of an earlier version: what a statement reads is what the log says."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.jvm import Jvm
from lakegate.ids import TableLocation
from tests.delta.delta_tables import foreign_commit, make_table

pytestmark = pytest.mark.slow

COLUMNS = "id BIGINT, v BIGINT, p STRING"
IN_CHECKSUM_MAX = 50
"""So many files Delta lists in a checksum."""
Jobs = Callable[[Callable[[], object]], int]


def known(session: SparkSession, table: TableLocation) -> list[str]:
    """Returns the table's files as a statement that begins now gets them."""
    jvm = Jvm(session)
    log = jvm.delta_log(table)
    with jvm.active():
        return said(jvm.snapshot(log).allFiles())


def in_log(session: SparkSession, table: TableLocation) -> list[str]:
    """The same by Delta's own replay of the whole log."""
    jvm = Jvm(session)
    with jvm.active():
        return said(jvm.snapshot(jvm.delta_log(table)).allFilesViaStateReconstruction())


def said(files: Any) -> list[str]:
    """Each file's action, without what says nothing; whether it was a change is said of commits, and statistics in any order."""
    bodies = [json.loads(file.json())["add"] for file in files.collectAsList()]
    for body in bodies:
        body |= {"dataChange": None, "stats": json.loads(body.get("stats") or "{}")}
    return sorted(
        json.dumps({key: value for key, value in body.items() if value not in (None, {})}, sort_keys=True)
        for body in bodies
    )


def spread(session: SparkSession, table: TableLocation, files: int, rows: int = 240) -> None:
    """Rows 0 … in so many files."""
    frame = session.range(0, rows, 1, files).selectExpr("id", "id % 10 AS v", "concat('p', id % 3) AS p")
    frame.write.format("delta").mode("append").save(table)


@pytest.mark.matrix
def test_files_of_more_than_a_checksum_lists_are_found_without_a_job(
    session: SparkSession, tmp_path: Path, jobs: Jobs
) -> None:
    """From the first statement on, after commits of ours and of stock statements of the driver."""
    table = make_table(session, tmp_path / "t", COLUMNS, enableDeletionVectors="true")
    spread(session, table, 2 * IN_CHECKSUM_MAX)
    ours = lakegate.DeltaTable.forPath(session, table)
    ours.delete("id = 0")
    assert len(known(session, table)) == 2 * IN_CHECKSUM_MAX
    for change in (
        lambda: ours.delete("id = 100"),
        lambda: ours.update("id = 200", {"v": "7"}),
        lambda: session.sql(f"DELETE FROM delta.`{table}` WHERE id = 150"),
        lambda: session.sql(f"INSERT INTO delta.`{table}` VALUES (999, 1, 'p0')"),
    ):
        change()
        found: list[str] = []
        assert jobs(lambda into=found: into.extend(known(session, table))) == 0
        assert found == in_log(session, table)


CHANGES = (
    "DELETE FROM {t} WHERE id % 41 = {n}",
    "UPDATE {t} SET v = v + 1 WHERE id % 37 = {n}",
    "MERGE INTO {t} t USING (SELECT explode(sequence({n}, 260, 29)) AS id) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = 0 WHEN NOT MATCHED THEN INSERT (id, v, p) VALUES (s.id, 1, 'p1')",
    "INSERT INTO {t} SELECT * FROM {t} WHERE id % 50 = {n}",
    "INSERT INTO {t} REPLACE WHERE p = 'p2' SELECT * FROM {t} WHERE p = 'p2' AND id % 3 <> {n} % 3",
    "OPTIMIZE {t}",
    "OPTIMIZE {t} ZORDER BY (v)",
    "REORG TABLE {t} APPLY (PURGE)",
    "RESTORE TABLE {t} TO VERSION AS OF {before}",
    "ALTER TABLE {t} SET TBLPROPERTIES ('x' = '{n}')",
    "ALTER TABLE {t} ADD COLUMN (c{version} INT)",
    "DELETE FROM {t}",
    "INSERT INTO {t} (id, v, p) SELECT id, id, 'p0' FROM range(300)",
)


@pytest.mark.parametrize(
    ("seed", "properties"),
    [
        (1, {"enableDeletionVectors": "true"}),
        (2, {"enableDeletionVectors": "true", "enableRowTracking": "true", "checkpointInterval": "3"}),
        pytest.param(3, {}, marks=pytest.mark.matrix),
        pytest.param(4, {"columnMapping.mode": "name", "enableDeletionVectors": "true"}, marks=pytest.mark.matrix),
        *(pytest.param(seed, {"enableDeletionVectors": "true"}, marks=pytest.mark.matrix) for seed in range(5, 10)),
    ],
)
def test_whatever_is_committed_they_are_those_of_the_log(
    session: SparkSession, tmp_path: Path, seed: int, properties: dict[str, str]
) -> None:
    """Statements of ours and stock ones at random: after each, what is known is what Delta's replay of the log gives."""
    table = make_table(session, tmp_path / "t", COLUMNS, **properties)
    t, rng = f"delta.`{table}`", random.Random(seed)
    spread(session, table, IN_CHECKSUM_MAX + 10)
    for step in range(10):
        text = rng.choice(CHANGES) if step % 5 else CHANGES[-1]
        version = Jvm(session).snapshot(Jvm(session).delta_log(table)).version()
        text = text.format(t=t, n=rng.randrange(20), version=version, before=max(1, version - rng.randrange(3)))
        run = lakegate.sql if rng.random() < 0.6 else SparkSession.sql
        run(session, text)
        if rng.random() < 0.8:  # several commits may come between
            assert known(session, table) == in_log(session, table), text


@pytest.mark.matrix
def test_a_recreated_table_has_its_own_known_files(session: SparkSession, tmp_path: Path, jobs: Jobs) -> None:
    """Of as many files of the same sizes, at an earlier version of the same place; and those of its next version are known."""
    old, new = (make_table(session, tmp_path / name, COLUMNS, enableDeletionVectors="true") for name in ("old", "new"))
    for table in (old, new):
        spread(session, table, IN_CHECKSUM_MAX + 10)
    for id_ in range(8):
        lakegate.DeltaTable.forPath(session, old).delete(f"id = {4 * id_}")
        before = known(session, old)
    shutil.rmtree(old)
    shutil.copytree(new, old)
    after = known(session, old)
    assert after == in_log(session, old)
    assert len(after) == len(before)
    assert not set(after) & set(before)
    lakegate.DeltaTable.forPath(session, old).delete("id = 0")
    known(session, old)
    lakegate.DeltaTable.forPath(session, old).delete("id = 1")
    found: list[str] = []
    assert jobs(lambda: found.extend(known(session, old))) == 0
    assert found == in_log(session, old)


@pytest.mark.matrix
@pytest.mark.parametrize("deleted", [(5,), (5, 9)], ids=["same version", "one on"])
def test_a_copy_that_is_put_back_has_a_history_of_its_own(
    session: SparkSession, tmp_path: Path, deleted: tuple[int, ...]
) -> None:
    """The table's id, and number and size of its files, are the same, as only vectors differ: rows would be lost."""
    table, copy = make_table(session, tmp_path / "t", COLUMNS, enableDeletionVectors="true"), tmp_path / "copy"
    spread(session, table, IN_CHECKSUM_MAX + 10)
    shutil.copytree(table, copy)
    lakegate.DeltaTable.forPath(session, table).delete("id = 0")
    assert known(session, table) == in_log(session, table)
    for id_ in deleted:  # in a file each
        session.sql(f"DELETE FROM delta.`{copy}` WHERE id = {id_}")
    shutil.copytree(copy, table, dirs_exist_ok=True)
    assert known(session, table) == in_log(session, table)
    lakegate.DeltaTable.forPath(session, table).delete("id = 10")
    assert known(session, table) == in_log(session, table)
    left = {row.id for row in session.read.format("delta").load(table).collect()}
    assert left == set(range(240)) - {10, *deleted}


@pytest.mark.matrix
def test_files_elsewhere_are_known_by_their_canonical_paths(session: SparkSession, tmp_path: Path, jobs: Jobs) -> None:
    """Those of a shallow clone; where another engine writes a path in another way, the state is asked."""
    table = make_table(session, tmp_path / "t", COLUMNS, enableDeletionVectors="true")
    spread(session, table, IN_CHECKSUM_MAX + 10)
    clone = TableLocation(str(tmp_path / "clone"))
    session.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{table}`")
    ours = lakegate.DeltaTable.forPath(session, clone)
    ours.delete("id = 0")
    before = known(session, clone)
    ours.delete("id = 4")
    found: list[str] = []
    assert jobs(lambda: found.extend(known(session, clone))) == 0
    assert found == in_log(session, clone) != before
    elsewhere = tmp_path / "elsewhere.parquet"
    file = {**next(file for file in map(json.loads, found) if "deletionVector" not in file), "partitionValues": {}}
    for path, place in ((str(elsewhere), elsewhere), ("./below.parquet", tmp_path / "clone" / "below.parquet")):
        shutil.copy(file["path"].removeprefix("file:"), place)
        foreign_commit(clone, {"add": {**file, "path": path, "dataChange": True, "stats": None}})
    ours.delete("id = 1")
    assert known(session, clone) == in_log(session, clone)
    assert not {str(elsewhere), "./below.parquet"} & {json.loads(file)["path"] for file in known(session, clone)}
