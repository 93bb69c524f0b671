"""Engines without Spark read what quick statements have written: delta-rs, and the Delta kernel in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.rows.quick import QUICK_CONF

VECTORS = "'delta.enableDeletionVectors' = 'true'"
KINDS = {
    "plain": f"TBLPROPERTIES ({VECTORS})",
    "partitioned, with a feed": f"PARTITIONED BY (p) TBLPROPERTIES ({VECTORS}, 'delta.enableChangeDataFeed' = 'true')",
    "names": f"TBLPROPERTIES ({VECTORS}, 'delta.columnMapping.mode' = 'name')",
    "names, partitioned": f"PARTITIONED BY (p) TBLPROPERTIES ({VECTORS}, 'delta.columnMapping.mode' = 'name')",
}
STATEMENTS = (
    "DELETE FROM {t} WHERE id IN (1, 2, 2500)",
    "DELETE FROM {t} WHERE id % 3 = 1 AND id < 2500",
    "UPDATE {t} SET w = upper(w), n = n + 0.25, p = 'new' WHERE id IN (6, 9, 3999)",
    "MERGE INTO {t} t USING (SELECT * FROM VALUES (12, 'x'), (15, NULL), (9000, '😀') AS s(id, w)) s ON t.id = s.id "
    "WHEN MATCHED AND s.w IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET w = s.w "
    "WHEN NOT MATCHED THEN INSERT (id, w, p) VALUES (s.id, s.w, 'a')",
    "INSERT INTO {t} (id, w, p, d, n, f) VALUES (9001, '', NULL, DATE '1500-01-01', -1.5, -0.0), "
    "(9002, NULL, 'b', NULL, NULL, NULL)",
    "DELETE FROM {t} WHERE id = 9001 OR n > 900 AND n < 901",
)
"""The first vector is in the log, the second one in a file."""
COLUMNS = "id, w, p, d, n, f"


def by_delta_rs(table: Path) -> Sequence[tuple[object, ...]]:
    """Returns the rows of a query in DataFusion."""
    found = pa.table(QueryBuilder().register("t", DeltaTable(table)).execute(f"SELECT {COLUMNS} FROM t"))
    return [tuple(row.values()) for row in found.to_pylist()]


def by_duckdb(table: Path) -> Sequence[tuple[object, ...]]:
    """Returns the rows of a query in DuckDB."""
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        return connection.execute(f"SELECT {COLUMNS} FROM delta_scan('{table}')").fetchall()


@pytest.mark.every_case
@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("plain", "names, partitioned") else pytest.param(kind, marks=pytest.mark.matrix)
        for kind in KINDS
    ],
)
def test_other_engines_read_the_rows_that_spark_reads(session: SparkSession, tmp_path: Path, kind: str) -> None:
    """After each statement; vectors are in the log, and in files."""
    table = tmp_path / "t"
    session.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, w STRING, p STRING, d DATE, n DECIMAL(18,4), f DOUBLE) USING delta {KINDS[kind]}"
    )
    session.sql(
        f"INSERT INTO delta.`{table}` SELECT id, concat('w', id), element_at(array('a', 'b c', NULL), CAST(id % 3 AS INT) + 1), "
        "date_add(DATE '1582-01-01', CAST(id AS INT)), CAST(id AS DECIMAL(18,4)) / 4, id / 8 FROM range(0, 4000, 1, 2)"
    )
    readers = [by_delta_rs, by_duckdb]
    if kind == "names, partitioned":
        # DuckDB's kernel takes a partition value that has a physical name for NULL, also of what stock Delta has written.
        assert {row[2] for row in by_duckdb(table)} == {None}
        readers.remove(by_duckdb)
    for number, text in enumerate(STATEMENTS):
        with confs(session, {QUICK_CONF: "on"}):
            done = lakegate.sql(session, text.format(t=f"delta.`{table}`"))
        assert done.lakegate.why_stock is None, (done.lakegate.why_stock, text)
        if number in (1, 2, len(STATEMENTS) - 1):
            expected = rows(session.read.format("delta").load(str(table)).selectExpr(*COLUMNS.split(", ")).collect())
            for read in readers:
                assert rows(read(table)) == expected, (read.__name__, text)
    log = "".join(path.read_text() for path in (table / "_delta_log").glob("*.json"))
    assert '"storageType":"i"' in log
    assert '"storageType":"u"' in log


def rows(found: Sequence[Sequence[object]]) -> Sequence[str]:
    """Returns rows as texts, in order."""
    return sorted(str(tuple(row)) for row in found)
