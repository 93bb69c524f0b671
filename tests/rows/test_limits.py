"""The data that a rebase reads is limited: beyond the limit the statement is re-executed, with the same result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from lakegate.report.statements import StatementMetrics
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.result import on_statement
from lakegate.rows.row_reader import BUDGET_CONF, POSITIONS_MAX
from tests.delta.delta_tables import follow, make_table


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session whose settings are the test's."""
    return spark.newSession()


def table(session: SparkSession, path: Path) -> str:
    """Three rows in two files, with vectors."""
    made = f"delta.`{make_table(session, path, 'id BIGINT, v BIGINT', enableDeletionVectors='true')}`"
    session.sql(f"INSERT INTO {made} SELECT /*+ COALESCE(1) */ * FROM VALUES (1L, 1L), (2L, 2L)")
    session.sql(f"INSERT INTO {made} VALUES (3, 3)")
    return made


def rows(session: SparkSession, made: str) -> Counter[tuple[int, int]]:
    return Counter((row.id, row.v) for row in session.sql(f"SELECT id, v FROM {made}").collect())


@pytest.mark.slow
def test_files_of_more_bytes_than_the_budget_are_not_looked_into(session: SparkSession, tmp_path: Path) -> None:
    """No row is read again to be tested; the statement is executed again instead, and the table is the same.

    What wins is of no concern to the first three, which statistics cannot tell of such conditions: a row has to be read.
    """
    made = table(session, tmp_path / "t")
    session.conf.set(QUICK_CONF, "off")  # the driver finds out that v + 0 = 1 is v = 1, of which statistics can tell
    update = f"UPDATE {made} SET v = v + 10 WHERE v + 0 = 1"
    on = "t.id + 0 = s.k WHEN MATCHED THEN UPDATE SET v = v + 100"
    within = follow(session, update, f"INSERT INTO {made} VALUES (7, 7)")
    assert (within.level, within.rows_read) == (1, 1)
    session.conf.set(BUDGET_CONF, "1")
    for ours, winner, level in (
        (f"UPDATE {made} SET v = v + 10 WHERE v + 0 = 11", f"INSERT INTO {made} VALUES (8, 8)", 3),
        (f"MERGE INTO {made} t USING (SELECT 1L AS k) s ON {on}", f"INSERT INTO {made} VALUES (9, 9)", 3),
        (f"OPTIMIZE {made}", f"DELETE FROM {made} WHERE id = 2", 4),
    ):
        beyond = follow(session, ours, winner)
        assert (beyond.level, beyond.rows_read) == (level, 0), ours
    assert rows(session, made) == Counter([(1, 121), (3, 3), (7, 7), (8, 8), (9, 9)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "level"),
    [pytest.param(POSITIONS_MAX, 2, marks=pytest.mark.matrix), (POSITIONS_MAX + 1, 3)],
    ids=["so many", "one more"],
)
def test_positions_of_more_rows_than_fit_are_not_collected(
    session: SparkSession, tmp_path: Path, number: int, level: int
) -> None:
    """A DELETE marks new matching rows in a vector; if there are too many, it is re-executed on their file. It counts the rows."""
    made = table(session, tmp_path / "t")
    counts, registry = StatementMetrics(), CollectorRegistry()
    registry.register(counts)
    stop = on_statement(counts)
    try:
        came = f"INSERT INTO {made} SELECT /*+ COALESCE(1) */ id, 1L FROM range({number})"
        result = follow(session, f"DELETE FROM {made} WHERE v + 0 = 1", came)
    finally:
        stop()
    assert rows(session, made) == Counter({(2, 2): 1, (3, 3): 1})
    assert (result.level, result.attempts, result.rows_read) == (level, level - 1, number)
    labels = {"table": f"file:{tmp_path / 't'}", "operation": "DELETE"}
    assert registry.get_sample_value("lakegate_statements_total", {**labels, "level": str(level)}) == 1
    assert registry.get_sample_value("lakegate_statement_attempts_total", labels) == level - 1
    assert registry.get_sample_value("lakegate_statement_rows_read_total", labels) == number
