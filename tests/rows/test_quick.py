"""A quick execution against stock Delta: the same statements on two copies of one table end in the same table and history."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import delta.tables
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import udf

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.errors import Corrupt, InvalidRequest
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.sql import statement
from tests.rows.two_copies import Pair

VECTORS = "'delta.enableDeletionVectors' = 'true'"
COLUMNS = "id BIGINT, v INT, w STRING, p STRING, d DATE, n DECIMAL(10,2), f DOUBLE"
ROWS = """
    SELECT id, CAST(id % 7 AS INT) AS v, IF(id % 11 = 0, NULL, concat('name-', id)) AS w,
        element_at(array('a', 'b', 'c d', '', NULL), CAST(id % 5 AS INT) + 1) AS p,
        date_add(DATE '1581-12-30', CAST(id AS INT)) AS d, CAST(id AS DECIMAL(10,2)) / 4 AS n,
        element_at(array(0.0D, -0.0D, double('NaN'), NULL, id * 0.1D), CAST(id % 5 AS INT) + 1) AS f
    FROM range(0, 200, 1, 4)
"""
STATEMENTS = (
    "DELETE FROM {t} WHERE id IN (17, 50, 149)",
    "UPDATE {t} SET v = v + 1, w = upper(w) WHERE id IN (3, 4, 150, 199)",
    "DELETE FROM {t} WHERE w IS NULL AND id < 50",
    "UPDATE {t} SET w = '' WHERE d < DATE '1582-10-20' AND v <=> 2",
    "UPDATE {t} SET n = n * 2, d = date_add(d, 1) WHERE n > 40.5 AND n <= 42",
    "DELETE FROM {t} WHERE f = double('NaN') AND id > 100",
    "UPDATE {t} SET f = f + 1 WHERE f = -0.0D AND id < 30",
    "DELETE FROM {t} WHERE id NOT IN (1, 2, NULL)",
    "UPDATE {t} SET id = id WHERE id >= 60 AND id < 63",
    "DELETE FROM {t} WHERE id >= 100 AND id < 150",
)
"""The first one deletes the first row of a file and the last one of another; the second-last changes no value; the last one empties
a file."""

MERGES = (
    """MERGE INTO {t} t USING (SELECT * FROM VALUES (3, 'x', 'a'), (900, 'y', ''), (7, NULL, 'b'), (NULL, 'z', NULL)
    AS s(id, w, p)) s
    ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET w = s.w, v = t.v + 1
    WHEN NOT MATCHED AND s.id IS NOT NULL THEN INSERT (id, w, p) VALUES (s.id, s.w, s.p)""",
    """MERGE INTO {t} t USING (SELECT * FROM VALUES (40L, 'd'), (41L, 'u'), (42L, 'u'), (43L, 'd'), (950L, 'd') AS s(id, op)) s
    ON t.id = s.id
    WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED AND t.v > 0 THEN UPDATE SET v = 0 WHEN NOT MATCHED AND s.op = 'u' THEN
    INSERT (id) VALUES (s.id)""",
    """MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 'new'), (2, 'new'), (960, 'new'), (961, NULL), (960, 'again') AS s(id, w)) s
    ON t.id = s.id AND t.w IS NOT NULL WHEN NOT MATCHED AND s.w IS NOT NULL THEN INSERT (id, w) VALUES (s.id, upper(s.w))""",
    """MERGE INTO {t} t USING (SELECT id + 5000 AS id FROM range(0, 3)) s
    ON s.id = t.id WHEN MATCHED THEN UPDATE SET v = 1
    WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 5)""",
    """MERGE INTO {t} t USING (SELECT * FROM VALUES ('name-101', DATE '1582-04-10', 1),
    ('name-102', DATE '1582-04-11', 2),
    ('name-103', NULL, 3) AS s(w, d, k)) s
    ON t.w = s.w AND s.d = t.d WHEN MATCHED THEN UPDATE SET v = s.k, d = date_add(s.d, t.v)""",
    """MERGE INTO {t} t USING (SELECT * FROM VALUES (0L), (1L), (2L) AS s(k)) s
    ON t.v = s.k AND t.id BETWEEN 20 AND 30 WHEN MATCHED THEN DELETE""",
    """MERGE INTO {t} t USING (SELECT * FROM VALUES (5, 1), (5, 2) AS s(id, k)) s
    ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.k""",
    """MERGE INTO {t} t USING (SELECT * FROM VALUES (10.50, 1), (11, 2) AS s(n, k)) s
    ON t.n = s.n AND t.id < 60 WHEN MATCHED THEN
    UPDATE SET v = s.k, f = -0.0""",
    """MERGE INTO {t} t USING (SELECT id, 9 AS v, 'star' AS w, 'a' AS p,
    DATE '2024-02-29' AS d, 1.25 AS n, double('NaN') AS f FROM range(48, 52)) s
    ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""",
    """MERGE INTO {t} t USING (SELECT * FROM VALUES (100), (149), (7777) AS s(id)) s
    ON t.id = s.id WHEN MATCHED AND t.v = 1000 THEN DELETE""",
)
"""The seventh one is refused: two source rows match one row."""
INSERTS = (
    """INSERT INTO {t} (id, v, w, p, d, n, f) VALUES (1000, 1, 'one', 'a', DATE '1500-01-01', 1.5, -0.0),
    (1001, NULL, '', '', NULL, NULL, NULL)""",
    """INSERT INTO {t} (f, id, w, v, p, d, n)
    SELECT 1.5, id, 'many', NULL, 'b', current_date(), 0.25 FROM range(2000, 2010)""",
    "INSERT INTO {t} (id, v, w, p, d, n, f) SELECT 1, 1, 'none', 'a', NULL, NULL, NULL WHERE false",
    "INSERT INTO {t} (id, v, w, p, d, n, f) VALUES ('x', 1, 'one', 'a', NULL, 1.5, 0)",
)


@contextmanager
def pair_of(session: SparkSession, folder: Path, ddl: str, rows: str = ROWS) -> Iterator[Pair]:
    """Makes a table by a definition after its name, fills it with rows, and copies it."""
    stock, quick = folder / "stock", folder / "quick"
    session.sql(f"CREATE TABLE delta.`{stock}` {ddl}")
    # Four files, and vectors in two of them: the quick execution begins on what stock Delta has left.
    session.sql(
        f"INSERT INTO delta.`{stock}` ({', '.join(column.split()[0] for column in COLUMNS.split(', '))}) {rows}"
    )
    shutil.copytree(stock, quick)
    yield Pair(session, str(stock), str(quick))


KINDS = {
    "plain": f"({COLUMNS}) USING delta TBLPROPERTIES ({VECTORS})",
    "feed": f"({COLUMNS}) USING delta TBLPROPERTIES ({VECTORS}, 'delta.enableChangeDataFeed' = 'true')",
    "partitioned": f"({COLUMNS}) USING delta PARTITIONED BY (p) TBLPROPERTIES ({VECTORS}, 'delta.enableChangeDataFeed' = 'true')",
    "names": f"({COLUMNS}) USING delta TBLPROPERTIES ({VECTORS}, 'delta.columnMapping.mode' = 'name')",
    "ids": f"({COLUMNS}) USING delta PARTITIONED BY (p) TBLPROPERTIES ({VECTORS}, 'delta.columnMapping.mode' = 'id')",
    "clustered": f"({COLUMNS}) USING delta CLUSTER BY (id) TBLPROPERTIES ({VECTORS})",
    "timed": f"({COLUMNS}) USING delta TBLPROPERTIES ({VECTORS}, 'delta.enableInCommitTimestamps' = 'true')",
    "generated": f"({COLUMNS}, g BIGINT GENERATED ALWAYS AS (id * 2)) USING delta TBLPROPERTIES ({VECTORS})",
    "not null": f"({COLUMNS.replace('id BIGINT', 'id BIGINT NOT NULL')}) USING delta TBLPROPERTIES ({VECTORS})",
    "few statistics": f"({COLUMNS}) USING delta TBLPROPERTIES ({VECTORS}, 'delta.dataSkippingNumIndexedCols' = '1')",
}


@pytest.mark.every_case
@pytest.mark.parametrize(
    "kind",
    [kind if kind == "feed" else pytest.param(kind, marks=pytest.mark.matrix) for kind in KINDS],
)
def test_a_quick_statement_does_what_stock_delta_does(session: SparkSession, tmp_path: Path, kind: str) -> None:
    """After every statement the history is the same; at the end all rows, their places, files and the change feed are."""
    with pair_of(session, tmp_path, KINDS[kind]) as pair:
        for statement in STATEMENTS:
            assert pair.run(statement) is None, statement
        pair.same()


@pytest.mark.every_case
@pytest.mark.parametrize(
    "kind",
    [kind if kind == "partitioned" else pytest.param(kind, marks=pytest.mark.matrix) for kind in KINDS],
)
def test_a_quick_merge_or_insert_does_what_stock_delta_does(session: SparkSession, tmp_path: Path, kind: str) -> None:
    """As with DELETE and UPDATE; also the statements that stock Delta refuses."""
    with pair_of(session, tmp_path, KINDS[kind]) as pair:
        for statement in MERGES:
            assert pair.run(statement) == ("it fails" if "(5, 2)" in statement else None), statement
        for statement in INSERTS:
            why = (
                "it fails"
                if "'x'" in statement
                else "it gives other columns than its table has"
                if kind == "generated"
                else None
            )
            assert pair.run(statement) == why, statement
        pair.same()


REWRITING = (STATEMENTS[0], STATEMENTS[1], MERGES[0], STATEMENTS[9], *MERGES[1:3])
NO_VECTORS = "'delta.enableDeletionVectors' = 'false', 'delta.enableChangeDataFeed' = 'true'"


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("place", "statements"), [("", 3), pytest.param("PARTITIONED BY (p)", len(REWRITING), marks=pytest.mark.matrix)]
)
def test_a_table_without_deletion_vectors_ends_as_by_stock_delta(
    session: SparkSession, tmp_path: Path, place: str, statements: int
) -> None:
    """Each statement begins on the same files: stock Delta writes a file per task, and its metrics count the rewritten files."""
    with pair_of(session, tmp_path, f"({COLUMNS}) USING delta {place} TBLPROPERTIES ({NO_VECTORS})") as pair:
        for number, text in enumerate(REWRITING[:statements]):
            stock, quick = (
                str(shutil.copytree(pair.stock, tmp_path / f"{name}-{number}")) for name in ("stock", "quick")
            )
            one = Pair(session, stock, quick)
            assert one.run(text) is None, text
            one.same()


def test_a_file_with_many_rows_or_a_vector_is_not_rewritten_in_the_driver(
    session: SparkSession, tmp_path: Path
) -> None:
    """The vector is older than the property that forbids new ones."""
    for rows, why in ((11_000, "it rewrites more than 10000 rows"), (30, "it rewrites a file with a deletion vector")):
        table = f"delta.`{tmp_path / str(rows)}`"
        session.sql(f"CREATE TABLE {table} (id BIGINT) USING delta TBLPROPERTIES ({VECTORS})")
        session.sql(f"INSERT INTO {table} SELECT id FROM range(0, {rows}, 1, 1)")
        if rows == 30:
            session.sql(f"DELETE FROM {table} WHERE id = 3")
        session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
        before = session.table(table).count()
        done: Any = lakegate.sql(session, f"DELETE FROM {table} WHERE id = 7")
        assert done.lakegate.why_stock == why
        assert session.table(table).count() == before - 1


def test_a_row_that_a_constraint_refuses_is_refused_as_by_stock_delta(session: SparkSession, tmp_path: Path) -> None:
    """Nothing is committed, and the error is the same; rows that are allowed are changed."""
    with pair_of(session, tmp_path, KINDS["partitioned"]) as pair:
        assert pair.run("DELETE FROM {t} WHERE p IS NULL") == "it changes whole partitions"
        for path in (pair.stock, pair.quick):
            session.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (v < 100)")
            session.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT placed CHECK (p IS NOT NULL)")
        assert pair.run("UPDATE {t} SET v = 99 WHERE id = 5") is None
        assert pair.run("UPDATE {t} SET v = 100 WHERE id IN (6, 7)") == "it fails"
        assert pair.run("UPDATE {t} SET v = CAST(w AS INT) WHERE id = 7") == "it fails"
        assert pair.run("UPDATE {t} SET v = NULL WHERE id = 5") == "it fails"  # it is not certain that NULL is small
        assert (
            pair.run("UPDATE {t} SET p = '' WHERE id = 5") == "it fails"
        )  # an empty text is NULL in a partition column
        assert pair.run("UPDATE {t} SET p = 'b' WHERE id = 5") is None
        pair.same()


@pytest.mark.slow
def test_a_merge_of_a_data_frame_does_what_stock_delta_does(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """An Arrow table needs no Spark job, other sources are read by one; what is large or observed is left to stock Delta."""
    few = [(3, "x"), (900, "y"), (None, "z")]
    shifted = udf(lambda id: None if id is None else id + 1, "bigint")
    cached = session.createDataFrame([(21, "k"), (22, "l")], "id INT, w STRING").repartition(2).persist()
    sources: dict[str, tuple[DataFrame, int | None, str | None]] = {
        "local": (session.createDataFrame(few, "id BIGINT, w STRING"), None, None),
        "filtered": (
            session.createDataFrame(few, "id INT, w STRING").where("w <> 'z'").selectExpr("id + 20 AS id", "w"),
            None,
            None,
        ),
        "arrow": (session.createDataFrame(pa.table({"id": [31, 901], "w": ["p", None]})), 0, None),
        "grouped": (
            session.createDataFrame([*few, (3, "y")], "id BIGINT, w STRING").groupBy("id").agg({"w": "max"}),
            None,
            None,
        ),
        "read": (session.range(40, 45).selectExpr("id", "'r' AS w").repartition(2), None, None),
        "function": (
            session.createDataFrame(few, "id BIGINT, w STRING").select(shifted("id").alias("id"), "w"),
            None,
            None,
        ),
        "cached": (cached, None, None),
        "empty": (session.createDataFrame([], "id BIGINT, w STRING"), None, None),
        "many": (
            session.range(20_000, 30_001).selectExpr("id", "'m' AS w"),
            None,
            "its source has more than 10000 rows",
        ),
        "observed": (
            session.range(50, 52).selectExpr("id", "'o' AS w").observe("seen", F.count("*")),
            None,
            "its source is observed",
        ),
    }
    with pair_of(session, tmp_path, KINDS["feed"]) as pair:
        for name, (frame, number, why) in sources.items():
            source = frame.toDF("id", "w").alias("s")

            def merge(kind: Any, path: str, source: DataFrame = source) -> Any:
                merged = kind.forPath(session, path).alias("t").merge(source, "t.id = s.id")
                merged = merged.whenMatchedUpdate(
                    "s.w IS NOT NULL", {"w": "upper(s.w)", "v": "t.v + 1"}
                ).whenMatchedDelete()
                return merged.whenNotMatchedInsert("s.id IS NOT NULL", {"id": "s.id", "w": "s.w"}).execute()

            expected = merge(delta.tables.DeltaTable, pair.stock).collect()
            found: list[Any] = []
            ran = jobs(partial(lambda done, run: done.append(run(lakegate.DeltaTable, pair.quick)), found, merge))
            assert [tuple(row) for row in found[0].collect()] == [tuple(row) for row in expected], name
            assert found[0].lakegate.why_stock == why, name
            assert number is None or ran == number, name
            assert pair.last(pair.quick) == pair.last(pair.stock), name
        cached.unpersist()
        pair.same()


REASONS = {
    "DELETE FROM {t} WHERE true": "it changes all rows",
    "UPDATE {t} SET v = 1": "it changes all rows",
    "DELETE FROM {t} WHERE p = 'c d'": "it changes whole partitions",
    "DELETE FROM {t} WHERE id IN (SELECT max(id) FROM {t})": "it fails",  # stock Delta refuses a sub-query there
    "UPDATE {t} SET v = (SELECT max(v) FROM {t}) WHERE id = 3": "a value that it assigns",
    "MERGE INTO {t} t USING (SELECT 3 AS id) s ON t.id < s.id WHEN MATCHED THEN DELETE": "its condition does not equate",
    "MERGE INTO {t} t USING (SELECT 3 AS id) s ON t.id = s.id "
    "WHEN NOT MATCHED BY SOURCE AND id = 9 THEN DELETE": "it changes rows that",
    "INSERT OVERWRITE {t} VALUES (1, 1, 'x', 'a', NULL, 1, 1)": "a statement of this kind is not served",
}


@pytest.mark.slow
def test_what_is_not_served_is_left_to_stock_delta_and_says_why(session: SparkSession, tmp_path: Path) -> None:
    """The result is the same; the reason names the part of the statement, and `explain` names it before."""
    with pair_of(session, tmp_path, KINDS["partitioned"]) as pair:
        for text, reason in reversed(REASONS.items()):
            why = lakegate.explain(session, text.format(t=f"delta.`{pair.quick}`")).why_stock
            assert reason == "it fails" or (why or "").startswith(reason), text
            assert (pair.run(text) or "").startswith(reason), text
        pair.same()


@pytest.mark.slow
def test_a_table_with_a_feature_that_is_not_served_is_left_to_stock_delta(
    session: SparkSession, tmp_path: Path
) -> None:
    """Row tracking gives each row an id, which an UPDATE would have to keep."""
    tracked = KINDS["plain"].replace(VECTORS, f"{VECTORS}, 'delta.enableRowTracking' = 'true'")
    with pair_of(session, tmp_path, tracked) as pair:
        assert pair.run("UPDATE {t} SET v = 1 WHERE id = 3") == "its table has the feature rowTracking"
        pair.same()


@pytest.mark.slow
def test_verify_commits_what_stock_delta_does_and_refuses_a_difference(session: SparkSession, tmp_path: Path) -> None:
    """Equal commits: the statement is committed. Another condition or value than stock Delta's: nothing is written."""
    with pair_of(session, tmp_path, KINDS["feed"]) as pair, confs(session, {QUICK_CONF: "verify"}):
        for text in (
            STATEMENTS[1],
            MERGES[1],
            INSERTS[0],
            INSERTS[1],
            "UPDATE {t} SET d = DATE'2000-01-01' WHERE id = -1",
            "MERGE INTO {t} t USING (SELECT 1 AS id) s ON t.id = s.id AND t.id = 1 AND CAST(t.id AS STRING) = '6' "
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id + 900)",
        ):
            session.sql(text.format(t=f"delta.`{pair.stock}`"))
            done: Any = lakegate.sql(session, text.format(t=f"delta.`{pair.quick}`"))
            assert done.lakegate.why_stock is None
        pair.same()
        rows = pair.rows(pair.quick)
        for text, other, part in (
            (
                "UPDATE {t} SET v = 7 WHERE id = 9",
                "UPDATE {t} SET v = 7 WHERE id = 10",
                "the description of the commit",
            ),
            ("UPDATE {t} SET v = 7 WHERE id = 9", "UPDATE {t} SET v = 8 WHERE id = 9", "the rows that it adds"),
            (
                "UPDATE {t} SET v = 7 WHERE id = 9",
                "UPDATE {t} SET v = 7 WHERE id = -9",
                "whether there is a commit",
            ),
            ("DELETE FROM {t} WHERE id = -9", "DELETE FROM {t} WHERE id = 9", "whether there is a commit"),
            ("UPDATE {t} SET v = v / 0 WHERE id = 9", "UPDATE {t} SET v = 7 WHERE id = 9", "its outcome"),
        ):
            dml, wrong = (statement(session, each.format(t=f"delta.`{pair.quick}`")) for each in (text, other))
            assert dml is not None
            assert wrong is not None
            with pytest.raises(Corrupt) as raised:
                publisher(session).publish(replace(dml, quick=wrong.quick))
            assert raised.value.facts["differs"] == part
        assert pair.rows(pair.quick) == rows


def test_values_of_parameters_are_found_without_a_spark_job(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """By name and by place."""
    with pair_of(session, tmp_path, KINDS["plain"]) as pair:
        for text, args, said in (
            (
                "UPDATE {t} SET w = :w, d = :d WHERE id = :id",
                {"w": "it's", "d": date(2024, 2, 29), "id": 7},
                r"UPDATE {t} SET w = 'it\'s', d = DATE '2024-02-29' WHERE id = 7",
            ),
            ("DELETE FROM {t} WHERE id IN (?, ?)", [8, 9], "DELETE FROM {t} WHERE id IN (8, 9)"),
            (
                "INSERT INTO {t} VALUES (:id, 1, :w, NULL, NULL, :n, 1.5)",
                {"id": 300, "w": None, "n": Decimal("1.25")},
                "INSERT INTO {t} VALUES (300, 1, NULL, NULL, NULL, 1.25, 1.5)",
            ),
        ):
            session.sql(said.format(t=f"delta.`{pair.stock}`"))
            ours = partial(lakegate.sql, session, text.format(t=f"delta.`{pair.quick}`"), args)
            assert jobs(ours) == 0, text
            assert pair.last(pair.quick) == pair.last(pair.stock), text
        pair.same()


def test_the_setting_is_checked(session: SparkSession, tmp_path: Path) -> None:
    """A word that means nothing is refused before anything is done."""
    with pair_of(session, tmp_path, KINDS["plain"]) as pair, confs(session, {QUICK_CONF: "yes"}):
        with pytest.raises(InvalidRequest, match="on, off or verify"):
            lakegate.sql(session, f"DELETE FROM delta.`{pair.quick}` WHERE id = 1")
        assert session.read.format("delta").load(pair.quick).count() == 200


@pytest.mark.slow
def test_a_statement_that_lost_its_commit_is_rebased_without_a_spark_job(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """Rows that other commits added and rows of the same file: found, or changed again, in the driver; the result is serial."""
    with pair_of(session, tmp_path, KINDS["feed"]) as pair, confs(session, {QUICK_CONF: "on"}):
        table = f"delta.`{pair.quick}`"
        for text, others in (
            (
                f"DELETE FROM {table} WHERE id IN (5, 900)",
                [f"INSERT INTO {table} VALUES (900, 1, 'x', 'a', NULL, NULL, NULL)"],
            ),
            (f"UPDATE {table} SET v = v + 10 WHERE id < 30", [f"UPDATE {table} SET w = 'w' WHERE id = 20"]),
            (
                f"UPDATE {table} SET v = v + 10 WHERE id < 40",
                [f"DELETE FROM {table} WHERE id = 21", f"DELETE FROM {table} WHERE id = 41"],
            ),
            (
                MERGES[0].format(t=table),  # a row with a key of the source came, and one with another key went
                [f"INSERT INTO {table} (id, v) VALUES (900, 5), (7000, 1)", f"DELETE FROM {table} WHERE id = 50"],
            ),
            (
                MERGES[1].format(t=table),  # only rows with other keys came and went
                [f"INSERT INTO {table} (id, v) VALUES (7001, 5)", f"DELETE FROM {table} WHERE id = 60"],
            ),
        ):
            dml = statement(session, text)
            assert dml is not None
            staged = publisher(session).stage(dml)
            for other in others:
                session.sql(other.replace(table, f"delta.`{pair.stock}`"))
                lakegate.sql(session, other)
            session.sql(text.replace(table, f"delta.`{pair.stock}`"))

            def finish(staged: Staged = staged) -> None:
                assert publisher(session).finish(staged).lost_puts == 0

            assert jobs(finish) == 0
        assert pair.rows(pair.quick) == pair.rows(pair.stock)
