"""Reads few rows of Delta tables in the driver, without a Spark job.

What a query reads is decided by Spark's analysis of it, and the rows are read by Delta's own reader; see `FewRows.java`.
"""

from __future__ import annotations

import base64
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from lakegate.delta.jvm import JVM_ERRORS, Jvm
from lakegate.quoting import quoted
from lakegate.rows.quick import BYTES_CONF, BYTES_MAX, QUICK_CONF

ROWS_MAX = 10_000
"""More keys are looked up faster by Spark."""


def local(query: DataFrame) -> DataFrame:
    """Returns a query with the same rows; if they are few, they are read already."""
    return few(query) or query


def among(query: DataFrame, keys: pa.Table) -> DataFrame:
    """Returns the rows of a query whose column has one of some values; if they are few, they are read already.

    Args:
        query: As for `few`.
        keys: One column, with its name in the query, of plain texts.
    """
    return few(query, keys) or joined(query, keys)


def joined(query: DataFrame, keys: pa.Table) -> DataFrame:
    """Returns what `among` returns, read by a Spark job."""
    (name,) = keys.column_names
    wanted = query.sparkSession.createDataFrame(keys).toDF("_lg_key")
    return query.join(F.broadcast(wanted), F.col(quoted(name)) == F.col("_lg_key"), "left_semi")


def is_for_driver(session: SparkSession, rows: int) -> bool:
    """Returns True if the driver may look up or write this number of rows itself."""
    return rows <= ROWS_MAX and session.conf.get(QUICK_CONF, "on") != "off"


def few(query: DataFrame, keys: pa.Table | None = None) -> DataFrame | None:
    """Returns a query whose Delta tables are read already; None if Spark has to read them.

    Args:
        query: Filters, projections and unions of tables.
        keys: Leaves out most of the rows that differ from these values. A column restricts the column of its name, alone: a row
            with values of two keys may stay. A column of a type whose values Spark does not compare byte by byte restricts nothing.
    """
    session = query.sparkSession
    if not is_for_driver(session, 0 if keys is None else keys.num_rows):
        return None
    wanted = None if keys is None else _plan(session.createDataFrame(keys))
    jvm = Jvm(session)
    with jvm.active():
        rows = jvm.few.of(jvm.jsession, _plan(query), wanted, jvm.int_conf(BYTES_CONF, BYTES_MAX))
    return None if rows is None else jvm.frame(rows)


def to_arrow(query: DataFrame) -> pa.Table:
    """Returns the rows of a query as `DataFrame.toArrow` does; of rows that are in the driver without a Spark job."""
    jvm = Jvm(query.sparkSession)
    try:
        with jvm.active():
            packed = jvm.whole(jvm.few.arrow(jvm.jsession, cast("Any", query)._jdf))
    except JVM_ERRORS:
        packed = None  # a job reports the failure
    if packed is None:
        return query.toArrow()
    schema = to_arrow_schema(query.schema, error_on_duplicated_field_names_in_struct=True)
    if not packed:
        return schema.empty_table()
    return pa.ipc.open_stream(base64.b64decode(packed)).read_all().cast(schema)


def _plan(query: DataFrame) -> Any:
    return cast("Any", query)._jdf.queryExecution().analyzed()
