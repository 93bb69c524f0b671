"""The rows of small commits, read in the driver, are those of Delta's change data feed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakegate.delta.actions import Action
from lakegate.delta.change_feed import ReadBySpark, changed_rows, files_of
from lakegate.delta.table_log import DeltaTableLog
from lakegate.ids import TableLocation, Version

NAMES = ("_version", "_come")
FED = "'delta.enableChangeDataFeed' = 'true'"
TABLES = {
    "vectors": f"TBLPROPERTIES ({FED}, 'delta.enableDeletionVectors' = 'true')",
    "rewritten files": f"TBLPROPERTIES ({FED}, 'delta.enableDeletionVectors' = 'false')",
    "partitions, and names of their own in the files": "PARTITIONED BY (p, day) TBLPROPERTIES "
    f"({FED}, 'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')",
}
COLUMNS = (
    "id BIGINT, p STRING, day DATE, at TIMESTAMP, n DECIMAL(10, 2), s STRUCT<a: INT, b: ARRAY<STRING>>, c VARCHAR(4)"
)
ROWS = (
    "SELECT id, concat('p ', id % 2) AS p, date_add(DATE'1500-01-01', CAST(id % 2 AS INT)) AS day, "
    "timestamp_micros(id * 1000001) AS at, CAST(id / 4 AS DECIMAL(10, 2)) AS n, "
    "named_struct('a', CAST(id AS INT), 'b', array('x', NULL)) AS s, 'c' AS c FROM range({}, {}, 1, 2)"
)
STATEMENTS = (
    "INSERT INTO {t} " + ROWS.format(0, 40),
    "UPDATE {t} SET n = n + 1, p = 'moved' WHERE id IN (3, 4, 38)",
    "DELETE FROM {t} WHERE id IN (5, 6)",
    "DELETE FROM {t} WHERE id IN (7, 8, 39)",
    "DELETE FROM {t} WHERE id = -1",
    "MERGE INTO {t} t USING (SELECT 9 AS id UNION ALL SELECT 100 AS id) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET p = NULL WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
    "MERGE INTO {t} t USING (SELECT 9 AS id) s ON t.id = s.id WHEN MATCHED AND t.n > 1000 THEN DELETE",
    "INSERT INTO {t} (id, p) VALUES (200, ''), (201, 'ü/=%')",
    "OPTIMIZE {t}",
    "DELETE FROM {t} WHERE p = 'p 0'",
)
AFTER_RESTORE = (
    "UPDATE {t} SET day = DATE'1582-10-04' WHERE id = 20",
    "INSERT OVERWRITE {t} " + ROWS.format(30, 33),
    "DELETE FROM {t}",
)


def texts(frame: Any) -> list[str]:
    """Returns rows as texts, sorted."""
    return sorted(map(str, frame.select(F.to_json(F.struct("*"))).collect()))


@pytest.mark.every_case
@pytest.mark.parametrize("kind", TABLES)
def test_rows_are_those_of_the_feed(session: SparkSession, tmp_path: Path, kind: str) -> None:
    """Commit by commit, and of all commits together."""
    table, location = f"delta.`{tmp_path}/t`", TableLocation(f"{tmp_path}/t")
    session.sql(f"CREATE TABLE {table} ({COLUMNS}) USING delta {TABLES[kind]}")
    log, feed = DeltaTableLog(session), session.read.format("delta").option("readChangeFeed", "true")

    def compare(first: int, statements: tuple[str, ...]) -> None:
        for statement in statements:
            session.sql(statement.format(t=table))
        newest = log.metadata(location).version
        for after, upto in [(first - 1, newest), *((one - 1, one) for one in range(first, newest + 1))]:
            rows = changed_rows(session, log, location, Version(after), Version(upto), NAMES)
            assert rows is not None, upto
            stock = feed.option("startingVersion", after + 1).option("endingVersion", upto).load(str(location))
            come = F.col("_change_type").isin("insert", "update_postimage").alias("_come")
            wanted = [column for column in stock.columns if not column.startswith("_")]
            assert texts(rows) == texts(stock.select(*wanted, F.col("_commit_version").alias("_version"), come)), upto

    compare(1, STATEMENTS)
    session.sql(f"RESTORE {table} TO VERSION AS OF 4")  # writes the definition: commits before it are left to Spark
    compare(log.metadata(location).version + 1, AFTER_RESTORE)


def test_what_only_spark_can_read_is_left_to_spark(session: SparkSession, tmp_path: Path) -> None:
    """A CHAR, a changed definition, no feed, a file or a commit that is gone; then Spark reports its own error."""
    log, padded = DeltaTableLog(session), TableLocation(f"{tmp_path}/padded")
    session.sql(f"CREATE TABLE delta.`{padded}` (c CHAR(4)) USING delta TBLPROPERTIES ({FED})")
    session.sql(f"INSERT INTO delta.`{padded}` VALUES ('c')")
    assert changed_rows(session, log, padded, Version(0), log.metadata(padded).version, NAMES) is None
    table, location = f"delta.`{tmp_path}/t`", TableLocation(f"{tmp_path}/t")
    session.sql(f"CREATE TABLE {table} (id BIGINT) USING delta TBLPROPERTIES ({FED})")
    session.sql(f"INSERT INTO {table} VALUES (1)")
    session.sql(f"ALTER TABLE {table} ADD COLUMN b INT")
    session.sql(f"INSERT INTO {table} VALUES (2, 2)")

    def read(after: int, upto: int) -> Any:
        log.metadata(location)
        return changed_rows(session, log, location, Version(after), Version(upto), NAMES)

    assert [row.id for row in read(2, 3).collect()] == [2]
    assert read(1, 3) is None
    assert read(0, 1) is None  # the table has another definition now
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    assert read(2, 3) is None
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    session.sql(f"INSERT INTO {table} VALUES (3, 3)")
    assert read(4, 5) is None
    (tmp_path / "t/_delta_log/00000000000000000001.json").unlink()
    assert changed_rows(session, DeltaTableLog(session), location, Version(0), Version(3), NAMES) is None


ADD = Action("add", {"path": "a", "partitionValues": {}, "size": 1, "dataChange": True})
GONE = Action("remove", {"path": "a", "partitionValues": {}, "size": 1, "dataChange": True})
CHANGED = Action("cdc", {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False})


def of(*actions: Action) -> list[list[str]]:
    """Returns the files of a commit: whether their rows have come, and the paths."""
    lines = [line.split("\t") for line in files_of(Version(7), actions)]
    assert all(line[0] == "7" for line in lines)
    return [[line[1], *(part.split('"path": "')[1][0] if part else "" for part in line[2:])] for line in lines]


def test_a_commit_is_read_by_the_rules_of_the_feed() -> None:
    """Files of changes alone, if there are some; no files that only moved rows; nothing of a MERGE that changed no row."""
    vector = {"deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}}
    marked = Action("add", {**ADD.body, **vector})
    was_marked = Action("remove", {**GONE.body, **vector})
    assert of(ADD) == [["true", "a", ""]]
    assert of(GONE) == [["false", "a", ""]]
    assert of(marked, GONE) == [["false", "a", "a"]]
    assert of(ADD, was_marked) == [["true", "a", "a"]]
    assert of(marked, was_marked) == [["false", "a", "a"], ["true", "a", "a"]]
    assert of(ADD, CHANGED) == [["", "c", ""]]
    assert of(Action("add", {**ADD.body, "dataChange": False})) == []
    metrics = dict.fromkeys(("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"), "0")
    merge = Action("commitInfo", {"operation": "MERGE", "operationMetrics": metrics})
    assert of(merge, ADD, GONE) == []
    assert of(Action("commitInfo", {"operation": "MERGE", "operationMetrics": {}}), ADD) == [["true", "a", ""]]
    undescribed = Action("remove", {"path": "a", "dataChange": True})
    for commit in ([Action("metaData", {})], [Action("protocol", {}), ADD], [undescribed]):
        with pytest.raises(ReadBySpark):
            of(*commit)
