"""Few rows of a table are read in the driver: the same rows as Spark reads, and no Spark job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs, create_table
from lakegate.delta.table_log import DeltaTableLog
from lakegate.ids import TableLocation
from lakegate.rows import few_rows
from lakegate.rows.quick import QUICK_CONF

Jobs = Callable[[Callable[[], object]], int]
COLUMNS = "id BIGINT, name STRING, part STRING, at TIMESTAMP, amount DECIMAL(10,2), nested STRUCT<a: BIGINT, b: DATE>"


def made(session: SparkSession, folder: Path) -> TableLocation:
    """Returns a partitioned table of four files, some rows of which are marked as deleted."""
    table = TableLocation(str(folder))
    create_table(session, table, COLUMNS, ["part"], properties={"delta.enableDeletionVectors": "true"})
    rows = session.range(0, 400, 1, 2).selectExpr(
        "id",
        "if(id % 10 = 0, NULL, concat('n', id % 50)) AS name",
        "if(id % 2 = 0, 'even', 'odd') AS part",
        "timestamp_micros(id * 1000001) AS at",
        "CAST(id / 4.0 AS DECIMAL(10,2)) AS amount",
        "named_struct('a', id, 'b', date_from_unix_date(CAST(id AS INT))) AS nested",
    )
    rows.write.format("delta").mode("append").save(table)
    lakegate.sql(session, f"DELETE FROM delta.`{table}` WHERE id IN (1, 2, 3, 51, 399)")
    return table


def same(one: pa.Table, other: pa.Table) -> bool:
    """Returns True if two tables have the same columns and rows."""
    return one.schema == other.schema and bool(one.sort_by("id").equals(other.sort_by("id")))


def test_few_rows_are_those_that_spark_reads_and_need_no_job(session: SparkSession, tmp_path: Path, jobs: Jobs) -> None:
    """Filters, projections and keys, with deletion vectors, NULLs and nested columns."""
    table = made(session, tmp_path / "t")
    log = DeltaTableLog(session)
    head = log.head(table)
    keys = pa.table({"name": ["n1", "n7", "n49", "absent"]})
    lakegate.sql(session, f"DELETE FROM delta.`{table}` WHERE id = 7")  # the rows of an older version stay as they were

    def query(version: int) -> DataFrame:
        rows = log.read_at(session, table, log.head(table) if version < 0 else head)
        return rows.where("part = 'odd'").selectExpr("id", "name", "at", "amount", "nested", "nested.b AS day")

    for version in (-1, int(head)):
        expected = query(version).where("name IN ('n1', 'n7', 'n49', 'absent')").toArrow()
        found: list[pa.Table] = []

        def read(version: int = version, found: list[pa.Table] = found) -> None:
            rows = few_rows.few(query(version), keys)
            assert rows is not None
            found.append(few_rows.to_arrow(rows))

        used = jobs(read)
        assert same(found[0], expected), version
        assert expected.num_rows > 15
        if version < 0:
            assert used == 0
    assert same(few_rows.to_arrow(few_rows.local(query(-1))), query(-1).toArrow())


def test_rows_that_are_not_few_are_left_to_spark(session: SparkSession, tmp_path: Path) -> None:
    """The rows are the same. A key of another type than its column restricts nothing."""
    table = made(session, tmp_path / "t")
    log = DeltaTableLog(session)
    rows = log.read_at(session, table, log.head(table)).select("id", "name")
    many = pa.table({"name": [f"n{number}" for number in range(few_rows.ROWS_MAX + 1)]})
    assert few_rows.few(rows, many) is None
    assert same(few_rows.among(rows, many).toArrow(), rows.where("name IS NOT NULL").toArrow())
    with confs(session, {QUICK_CONF: "off"}):
        assert few_rows.few(rows) is None
    assert few_rows.few(session.range(3).selectExpr("id", "uuid() AS name").unionByName(rows)) is not None
    unrestricted = few_rows.few(rows, pa.table({"id": ["1"]}))
    assert unrestricted is not None
    assert same(few_rows.to_arrow(unrestricted), rows.toArrow())
    session.range(0, few_rows.ROWS_MAX, 1, 1).selectExpr("id", "'x' AS name", "'even' AS part").write.format(
        "delta"
    ).mode("append").save(table)
    grown = log.read_at(session, table, log.head(table)).select("id", "name")
    assert few_rows.few(grown) is None
    assert same(few_rows.to_arrow(few_rows.local(grown)), grown.toArrow())


def test_columns_of_all_kinds_are_read_as_spark_reads_them(session: SparkSession, tmp_path: Path) -> None:
    """Padded texts, renamed columns, names with dots, NaN, old dates, and partitions of NULL."""
    table = TableLocation(str(tmp_path / "t"))
    columns = "id INT, c CHAR(5), f DOUBLE, `a.b` STRING, p DATE"
    mapped = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
    create_table(session, table, columns, ["p"], properties=mapped)
    session.sql(
        f"INSERT INTO delta.`{table}` VALUES (1, 'ab', 0.0D, 'q', DATE '1500-01-01'), (2, 'cd', -0.0D, 'r', NULL), "
        "(3, NULL, double('NaN'), NULL, DATE '2020-01-01')"
    )
    with confs(session, {"spark.sql.legacy.charVarcharAsString": "true"}):  # Spark pads the text when it reads it
        session.sql(f"INSERT INTO delta.`{table}` VALUES (4, 'zz', 1.0D, 's', NULL)")
    session.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN f TO g")
    lakegate.sql(session, f"DELETE FROM delta.`{table}` WHERE id = 2")
    log = DeltaTableLog(session)
    rows = log.read_at(session, table, log.head(table))
    found = few_rows.few(rows)
    assert found is not None
    one, other = (frame.sort_by("id") for frame in (few_rows.to_arrow(found), rows.toArrow()))
    assert one.schema == other.schema
    assert str(one.to_pylist()) == str(other.to_pylist())  # NaN is not equal to itself
    for column, value, ids in (("c", "zz   ", [4]), ("c", "zz", []), ("a.b", "q", [1]), ("g", 1.0, [1, 3, 4])):
        among = few_rows.few(rows, pa.table({column: [value]}))
        assert among is not None, column
        assert sorted(few_rows.to_arrow(among)["id"].to_pylist()) == ids, (column, value)
