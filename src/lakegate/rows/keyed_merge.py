"""Writes rows with different keys by one MERGE, without a Spark job if the driver can execute it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import IntegerType, StructField, StructType

from lakegate.delta.storage_errors import texts_of
from lakegate.errors import LakegateError
from lakegate.quoting import quoted
from lakegate.rows.delta_table import DeltaTable
from lakegate.rows.keyed_changes import FoldedRow, RowRefused
from lakegate.rows.keyed_columns import KeyedColumns
from lakegate.rows.merge_builder import DeltaMergeBuilder
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.result import Result
from lakegate.rows.thread_scope import run

SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Settings on which a generated column or a constraint may depend: taken over from the session of the caller."""
DEFAULT, GENERATED, IDENTITY = "CURRENT_DEFAULT", "delta.generationExpression", "delta.identity.start"
"""What the metadata of a column say of the value that a new row gets."""
SHAPE = "shape"
"""Column of the source: the number of the shape of a row."""
OF_A_ROW = re.compile(
    r"\[(?:DELTA_VIOLATE_CONSTRAINT|DELTA_NOT_NULL_CONSTRAINT|DELTA_EXCEED_CHAR_VARCHAR|EXCEED_LIMIT_LENGTH|NOT_NULL_ASSERT"
    r"|CAST_|NUMERIC_|ARITHMETIC_|DIVIDE_BY_ZERO|DECIMAL_)[^\]]*\].*",
    re.DOTALL,
)
"""Errors of Spark and Delta that are about a value: without the row, the others can be written."""
LINE_MAX = 500


class KeyedMerge:
    """Writes rows of one table, in a session of its own."""

    def __init__(self, spark: SparkSession, columns: KeyedColumns) -> None:
        self._session, self._columns = spark.newSession(), columns
        for name in SETTINGS:
            self._session.conf.set(name, str(spark.conf.get(name)))
        self._session.conf.set(QUICK_CONF, "on")

    def merge(self, rows: Sequence[FoldedRow]) -> Result:
        """Writes rows with different keys by one statement.

        Raises:
            RowRefused: One of the rows is refused; nothing was written.
            Exception: Any other error of the statement.
        """

        def refuse(why: str) -> None:
            # Spark would find out the same with a job, for each part of the rows.
            if (found := OF_A_ROW.search(why)) is not None:
                raise RowRefused(_short(found[0]))

        try:
            return run(replace(self._statement(rows)._dml(), before_stock=refuse))
        except (RowRefused, LakegateError):
            raise
        except Exception as error:
            found = next(filter(None, map(OF_A_ROW.search, texts_of(error))), None)
            if found is None:
                raise
            raise RowRefused(_short(found[0])) from error

    def _statement(self, rows: Sequence[FoldedRow]) -> DeltaMergeBuilder:
        shapes = {shape: number for number, shape in enumerate(dict.fromkeys(row.shape for row in rows))}
        used = [name for name in self._columns.fields if any(name in given for _, _, given in shapes)]
        place = {name: f"c{number}" for number, name in enumerate(used)}
        schema = StructType([StructField(place[name], self._columns.fields[name].dataType) for name in used])
        schema = schema.add(SHAPE, IntegerType())
        tuples = [(*(row.values.get(name) for name in used), shapes[row.shape]) for row in rows]
        # The rows of an Arrow table are a part of the plan. Rows of Python would be read by a job with a Python worker.
        rows_in_arrow = LocalDataToArrowConversion.convert(tuples, schema, use_large_var_types=False)
        source = self._session.createDataFrame(rows_in_arrow, schema).alias("s")
        on = " AND ".join(f"t.{quoted(name)} = s.{place[name]}" for name in self._columns.key)
        merge = DeltaTable.forPath(self._session, self._columns.table).alias("t").merge(source, on)
        for (is_delete, is_anew, given), number in shapes.items():
            when = f"s.{SHAPE} = {number}" if len(shapes) > 1 else None
            if is_delete:
                merge = merge.whenMatchedDelete(when)
                continue
            values = {quoted(name): f"s.{place[name]}" for name in used if name in given}
            changed = {name: value for name, value in values.items() if name not in map(quoted, self._columns.key)}
            if is_anew:
                changed |= {quoted(name): self._of_new_row(name) for name in self._set_as_new(given)}
            if changed:
                merge = merge.whenMatchedUpdate(when, changed)
            merge = merge.whenNotMatchedInsert(when, values)
        return merge

    def _set_as_new(self, given: frozenset[str]) -> list[str]:
        others = (field for name, field in self._columns.fields.items() if name not in given)
        return [field.name for field in others if GENERATED not in field.metadata and IDENTITY not in field.metadata]

    def _of_new_row(self, name: str) -> str:
        return str(self._columns.fields[name].metadata.get(DEFAULT, "NULL"))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}…"
