"""Records of people with numbers for ids, and the ids that are in their table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def people(start: int, count: int) -> pa.Table:
    """Records with ids from `start`, ten a person."""
    ids = range(start, start + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "person": [f"p{id_ // 10}" for id_ in ids]})


def ids(spark: SparkSession, root: Path) -> list[int]:
    """The ids in the table, sorted."""
    rows = spark.read.format("delta").load(str(root / "table")).select("id").toArrow()
    return sorted(rows["id"].to_pylist())
