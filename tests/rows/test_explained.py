"""The read set that a statement's plan shows, for SQL and for `DeltaTable`: the class that decides how it may be rebased."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import udf

import lakegate
from lakegate.errors import InvalidRequest
from lakegate.rows.conflict.concurrency import OTHERS
from lakegate.rows.conflict.read_set import Reads, classify
from lakegate.rows.explain import READS, Explanation, explain
from lakegate.rows.sql import statement
from lakegate.rows.statement import Dml
from tests.cli.command import lakegate as command
from tests.delta.delta_tables import commit_paths, make_table

pytestmark = pytest.mark.every_case

SUB_QUERY = "its condition has a sub-query"
ASSIGNS = "what it assigns has a sub-query"
TIME = "its condition depends on the current time or user"
SOURCE_TIME = "its source depends on the current time or user"
CHANCE = "its condition is not deterministic"
LIVE = "its source may change: read a Delta table as of a version, or save the source first"
ITSELF = "its source reads the table itself"
SOME = "its source selects some of its rows, and may select others later"
TEXT = "its text has parameters that are not literals, a WITH clause, or a data frame that no longer exists by then"
BOUND = "it is bound to rows that were read before"
PARTLY, AGAIN = "on the files concerned (level 3)", "on the table as it then is (level 4)"


@dataclass(frozen=True)
class Tables:
    """Objects that statements name: the table that they change, another table, files, and a table without vectors."""

    session: SparkSession
    folder: Path

    def text(self, sql: str) -> str:
        """`{t}`, `{o}`, `{p}` and `{plain}` as SQL."""
        paths = {name: f"delta.`{self.folder / name}`" for name in ("t", "o", "plain")}
        return sql.format(p=f"parquet.`{self.folder / 'p'}`", **paths)

    @property
    def target(self) -> lakegate.DeltaTable:
        """The table that is changed."""
        return lakegate.DeltaTable.forPath(self.session, str(self.folder / "t"))

    @property
    def rows(self) -> DataFrame:
        """Local ones."""
        return self.session.createDataFrame([(1, 2)], "id BIGINT, v BIGINT")

    def other(self, version: int | None = None) -> DataFrame:
        """The other table, as it is now or as of a version."""
        reader = self.session.read.format("delta")
        reader = reader if version is None else reader.option("versionAsOf", version)
        return reader.load(str(self.folder / "o"))


@pytest.fixture(scope="module")
def tables(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Empty ones: nothing is executed."""
    folder = tmp_path_factory.mktemp("tables")
    columns = "id BIGINT, v BIGINT, at TIMESTAMP, s STRING"
    for name, has_vectors in (("t", "true"), ("o", "true"), ("plain", "false")):
        make_table(session, folder / name, columns, enableDeletionVectors=has_vectors)
    session.range(3).selectExpr("id", "id AS v").write.parquet(str(folder / "p"))
    made = Tables(session, folder)
    session.sql(made.text("INSERT INTO {o} VALUES (1, 1, NULL, 'x')"))
    made.rows.createOrReplaceTempView("local_rows")
    return made


def said(found: Explanation) -> tuple[Reads, tuple[str, ...]]:
    """Returns the read set, and the reasons for a rerun as a whole."""
    (reads,) = [each for each, words in READS.items() if words == found.reads]
    return reads, found.obstacles


# ----------------------------------------------------------------------------------------------------------------- SQL

WIDE = ", ".join(f"v AS w{i}" for i in range(30))
"""More columns than Spark shows of a plan."""
MERGE_ID = " ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v"
NEWEST = "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY {} ORDER BY {}) AS n FROM {{p}}) WHERE {}"
SQL: Sequence[tuple[str, Reads, tuple[str, ...]]] = [
    ("DELETE FROM {t}", Reads.ROWS, ()),
    ("DELETE FROM {t} AS x WHERE x.v % 2 = 1 AND x.s LIKE 'a%'", Reads.ROWS, ()),
    ("DELETE FROM {t} WHERE id IN (SELECT id FROM {o})", Reads.TABLE, (SUB_QUERY,)),
    ("DELETE FROM {t} WHERE EXISTS (SELECT 1 FROM {o})", Reads.TABLE, (SUB_QUERY,)),
    ("DELETE FROM {t} WHERE v = (SELECT max(v) FROM {t})", Reads.TABLE, (SUB_QUERY,)),
    ("DELETE FROM {t} WHERE at < current_timestamp()", Reads.TABLE, (TIME,)),
    ("DELETE FROM {t} WHERE at < now() - INTERVAL 7 DAYS", Reads.TABLE, (TIME,)),
    ("DELETE FROM {t} WHERE cast(at AS DATE) < current_date()", Reads.TABLE, (TIME,)),
    ("DELETE FROM {t} WHERE v < unix_timestamp()", Reads.TABLE, (TIME,)),
    ("DELETE FROM {t} WHERE at < 'now'", Reads.TABLE, (TIME,)),
    ("DELETE FROM {t} WHERE cast(at AS DATE) = 'Today'", Reads.TABLE, (TIME,)),
    ("DELETE FROM {t} WHERE at < 'today UTC'", Reads.TABLE, (TIME,)),
    ("DELETE FROM {t} WHERE at < '2026-01-01' AND s = 'now'", Reads.ROWS, ()),
    ("DELETE FROM {t} WHERE rand() < 0.5", Reads.TABLE, (CHANCE,)),
    ("UPDATE {t} SET v = v + 1 WHERE id = 3", Reads.ROWS, ()),
    ("UPDATE {t} SET v = DEFAULT WHERE id = 3", Reads.ROWS, ()),
    ("UPDATE {t} SET v = DEFAULT, id = (SELECT max(v) FROM {o})", Reads.TABLE, (ASSIGNS,)),
    ("UPDATE {t} SET v = 1 WHERE id IN (SELECT id FROM {o})", Reads.TABLE, (SUB_QUERY,)),
    ("UPDATE {t} SET v = 1 WHERE at < current_timestamp()", Reads.TABLE, (TIME,)),
    ("UPDATE {t} SET v = (SELECT max(v) FROM {o})", Reads.TABLE, (ASSIGNS,)),
    ("WITH x AS (SELECT 1) DELETE FROM {t} WHERE v = 1", Reads.TABLE, (TEXT,)),
    ("WITH x AS (SELECT * FROM {o}) MERGE INTO {t} t USING x s" + MERGE_ID, Reads.TABLE, (TEXT,)),
    ("WITH x AS (SELECT * FROM {t}) INSERT INTO {t} SELECT * FROM x", Reads.TABLE, (ITSELF,)),
    ("WITH x AS (SELECT * FROM {o}) INSERT INTO {t} SELECT * FROM x", Reads.NOTHING, ()),
    ("MERGE INTO {t} t USING (SELECT * FROM VALUES (1L, 2L) AS x(id, v)) s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING (SELECT id, id AS v FROM range(5)) s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING local_rows s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING {p} s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING (SELECT * FROM {o} VERSION AS OF 1) s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING {o} s" + MERGE_ID, Reads.TABLE, (LIVE,)),
    ("MERGE INTO {t} t USING (SELECT o.* FROM {p} p JOIN {o} o ON p.id = o.id) s" + MERGE_ID, Reads.TABLE, (LIVE,)),
    ("MERGE INTO {t} t USING (SELECT id, v + 1 AS v FROM {t}) s" + MERGE_ID, Reads.TABLE, (ITSELF,)),
    (
        "MERGE INTO {t} t USING (SELECT id, id AS v FROM range(5) WHERE id < (SELECT max(v) FROM {o})) s" + MERGE_ID,
        Reads.TABLE,
        ("its source has a sub-query",),
    ),
    (
        "MERGE INTO {t} t USING (SELECT cast(5 * rand() AS BIGINT) AS id, 1 AS v FROM range(5)) s" + MERGE_ID,
        Reads.TABLE,
        ("its source is not deterministic",),
    ),
    (
        "MERGE INTO {t} t USING (SELECT id, v FROM (SELECT id, rand() AS v FROM range(5)) WHERE v < 0.5) s" + MERGE_ID,
        Reads.TABLE,
        ("its source is not deterministic",),
    ),
    (
        "MERGE INTO {t} t USING (SELECT DISTINCT id, rand() AS v FROM {p}) s" + MERGE_ID,
        Reads.TABLE,
        ("its source is not deterministic",),
    ),
    (
        "MERGE INTO {t} t USING (SELECT id, 1 AS v FROM range(5) UNION ALL SELECT unix_timestamp(), 2) s" + MERGE_ID,
        Reads.TABLE,
        (SOURCE_TIME,),
    ),
    ("MERGE INTO {t} t USING (SELECT id, rand() AS v FROM range(5)) s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING (SELECT id, unix_timestamp() AS v FROM range(5)) s" + MERGE_ID, Reads.KEYS, ()),
    (
        "MERGE INTO {t} t USING (SELECT p.id, x.v FROM {p} p JOIN (SELECT id, uuid() AS v FROM {p}) x ON p.id = x.id) s"
        + MERGE_ID,
        Reads.KEYS,
        (),
    ),
    ("MERGE INTO {t} t USING (SELECT id, (SELECT max(v) FROM {o}) AS v FROM range(5)) s" + MERGE_ID, Reads.KEYS, ()),
    (
        "MERGE INTO {t} t USING (SELECT id, id + (SELECT max(v) FROM {t}) AS v FROM range(5)) s" + MERGE_ID,
        Reads.TABLE,
        (ITSELF,),
    ),
    (
        "MERGE INTO {t} t USING (SELECT id, EXISTS (SELECT 1 FROM {o} WHERE v > (SELECT max(v) FROM {t})) AS v "
        "FROM range(5)) s" + MERGE_ID,
        Reads.TABLE,
        (ITSELF,),
    ),
    ("MERGE INTO {t} t USING (SELECT * FROM {p} LIMIT 2) s" + MERGE_ID, Reads.TABLE, (SOME,)),
    ("MERGE INTO {t} t USING (SELECT * FROM {p} TABLESAMPLE (50 PERCENT)) s" + MERGE_ID, Reads.TABLE, (SOME,)),
    ("MERGE INTO {t} t USING (SELECT id, max(v) AS v FROM {p} GROUP BY id) s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING (SELECT v, max(id) AS id FROM {p} GROUP BY v) s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING (SELECT v, first(id) AS id FROM {p} GROUP BY v) s" + MERGE_ID, Reads.TABLE, (SOME,)),
    ("MERGE INTO {t} t USING (SELECT id, first(v) AS v FROM {p} GROUP BY id) s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING (" + NEWEST.format("id", "v", "n = 1") + ") s" + MERGE_ID, Reads.KEYS, ()),
    ("MERGE INTO {t} t USING (" + NEWEST.format("v", "id", "n = 1") + ") s" + MERGE_ID, Reads.TABLE, (SOME,)),
    ("MERGE INTO {t} t USING (" + NEWEST.format("id", "v", "n = 1 AND v > 0") + ") s" + MERGE_ID, Reads.TABLE, (SOME,)),
    ("MERGE INTO {t} t USING (" + NEWEST.format("id % 2", "v", "n = 1") + ") s" + MERGE_ID, Reads.TABLE, (SOME,)),
    ("MERGE INTO {t} t USING (" + NEWEST.format("id", "v", "true") + ") s" + MERGE_ID, Reads.KEYS, ()),
    (
        "MERGE INTO {t} t USING (SELECT v, lag(id) OVER (ORDER BY v) AS id FROM {p}) s" + MERGE_ID,
        Reads.TABLE,
        (SOME,),
    ),
    ("MERGE INTO {t} t USING local_rows s ON t.id > s.id WHEN MATCHED THEN DELETE", Reads.KEYS, ()),
    (
        "MERGE INTO {t} t USING local_rows s ON t.id = s.id AND t.at < current_timestamp() WHEN MATCHED THEN DELETE",
        Reads.TABLE,
        (TIME,),
    ),
    (
        f"MERGE INTO {{t}} t USING (SELECT {WIDE}, cast('now' AS timestamp) AS at, id FROM {{p}}) s "
        "ON t.id = s.id AND t.at < s.at WHEN MATCHED THEN DELETE",
        Reads.TABLE,
        (SOURCE_TIME,),
    ),
    (
        "MERGE INTO {t} t USING local_rows s ON t.id = s.id WHEN NOT MATCHED BY SOURCE AND t.at < now() THEN DELETE",
        Reads.TABLE,
        (TIME,),
    ),
    (
        "MERGE INTO {t} t USING local_rows s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = (SELECT max(v) FROM {t})",
        Reads.TABLE,
        (ASSIGNS,),
    ),
    (
        "MERGE INTO {t} t USING local_rows s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 1 + (SELECT count(*) FROM {o}))",
        Reads.TABLE,
        (ASSIGNS,),
    ),
    (
        "MERGE INTO {t} t USING {p} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        Reads.KEYS,
        (),
    ),
    ("INSERT INTO {t} VALUES (1, 1, NULL, 'x')", Reads.NOTHING, ()),
    ("INSERT INTO {t} VALUES (1, DEFAULT, NULL, 'x')", Reads.NOTHING, ()),
    ("INSERT INTO {t} SELECT 1, 2, NULL, 'x'", Reads.NOTHING, ()),
    (
        "INSERT INTO {t} SELECT (SELECT max(id) FROM {t}), 1, NULL, 'x'",
        Reads.TABLE,
        ("its source has a sub-query", ITSELF),
    ),
    ("INSERT INTO {t} SELECT id, rand(), now(), 'x' FROM {o}", Reads.NOTHING, ()),
    ("INSERT INTO {t} SELECT * FROM {t} WHERE v = 1", Reads.TABLE, (ITSELF,)),
    ("INSERT INTO {t} WITH x AS (SELECT * FROM {t}) SELECT * FROM x", Reads.TABLE, (ITSELF,)),
    (
        "INSERT INTO {t} SELECT * FROM {o} WHERE id > (SELECT max(id) FROM {t})",
        Reads.TABLE,
        ("its source has a sub-query", ITSELF),
    ),
    ("INSERT OVERWRITE {t} VALUES (1, 1, NULL, 'x')", Reads.TABLE, ()),
    ("INSERT INTO {t} REPLACE WHERE v = 1 VALUES (1, 1, NULL, 'x')", Reads.TABLE, ()),
    ("OPTIMIZE {t}", Reads.PLACES, ()),
    ("OPTIMIZE {t} ZORDER BY (id)", Reads.PLACES, ()),
    ("REORG TABLE {t} APPLY (PURGE)", Reads.PLACES, ()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sql", "reads", "obstacles"), SQL, ids=[each[0] for each in SQL])
def test_sql_is_classified_by_its_plan(tables: Tables, sql: str, reads: Reads, obstacles: tuple[str, ...]) -> None:
    """The read set, and the reasons why it cannot be evaluated again; nothing is executed."""
    table = str(tables.folder / "t")
    found = lakegate.explain(tables.session, tables.text(sql))
    assert said(found) == (reads, obstacles)
    assert found.table == f"file:{table}"
    assert len(commit_paths(table)) == 1


def test_values_of_parameters_are_part_of_the_statement(tables: Tables) -> None:
    """By name, by place, and in an INSERT; an array is no literal, and Spark puts it in later."""
    for text, args, expected in (
        ("DELETE FROM {t} WHERE v = :v", {"v": 1}, (Reads.ROWS, ())),
        ("UPDATE {t} SET v = 2 WHERE v = ?", [1], (Reads.ROWS, ())),
        ("INSERT INTO {t} VALUES (?, 1, NULL, 'x')", [1], (Reads.NOTHING, ())),
        ("DELETE FROM {t} WHERE array_contains(:some, v)", {"some": [1]}, (Reads.TABLE, (TEXT,))),
    ):
        dml = statement(tables.session, tables.text(text), args)
        assert dml is not None
        assert said(explain(dml)) == expected


def test_data_frames_in_the_text_are_asked_of_while_they_have_names(tables: Tables) -> None:
    """As the rows of an INSERT and the source of a MERGE; not in a condition, which is asked again later."""
    session = tables.session
    local = session.createDataFrame([(1, 2)], "id BIGINT, v BIGINT")
    itself = session.sql(tables.text("SELECT id, v FROM {t}"))
    for text, frame, expected in (
        ("INSERT INTO {t} (id, v) SELECT * FROM {{s}}", local, (Reads.NOTHING, ())),
        ("INSERT INTO {t} (id, v) SELECT * FROM {{s}}", itself, (Reads.TABLE, (ITSELF,))),
        ("MERGE INTO {t} t USING {{s}} s" + MERGE_ID, local, (Reads.KEYS, ())),
        ("MERGE INTO {t} t USING {{s}} s" + MERGE_ID, itself, (Reads.TABLE, (ITSELF,))),
        # Each execution lists files again.
        (
            "MERGE INTO {t} t USING (SELECT p.* FROM {{s}} JOIN {p} p USING (id)) s" + MERGE_ID,
            local,
            (Reads.TABLE, (TEXT,)),
        ),
        ("DELETE FROM {t} WHERE id IN (SELECT id FROM {{s}})", local, (Reads.TABLE, (TEXT,))),
    ):
        dml = statement(session, tables.text(text), s=frame)
        assert dml is not None
        assert said(explain(dml)) == expected
    one = statement(session, tables.text("DELETE FROM {t} WHERE v = {{n}}"), n=1)
    assert one is not None
    assert said(explain(one)) == (Reads.ROWS, ()), "a value is written into the text"


def test_a_function_of_sql_may_read_the_table(tables: Tables) -> None:
    """What its body says is seen when the statement is analysed, not in its text."""
    session = tables.session
    session.sql(
        tables.text(
            "CREATE OR REPLACE TEMPORARY FUNCTION next_id() RETURNS BIGINT RETURN (SELECT max(id) + 1 FROM {t})"
        )
    )
    dml = statement(session, tables.text("INSERT INTO {t} (id, v) SELECT next_id(), 1"))
    assert dml is not None
    assert said(explain(dml)) == (Reads.TABLE, ("its source has a sub-query", ITSELF))


@pytest.mark.parametrize(
    ("assigned", "then"),
    [
        ("v = v + length(s)", PARTLY),
        ("s = 'no time', v = v + 1", PARTLY),
        ("at = current_timestamp()", AGAIN),
        ("at = 'now'", AGAIN),
        ("v = 1, at = ' Today UTC'", AGAIN),
        ("v = monotonically_increasing_id()", AGAIN),
        ("s = uuid()", AGAIN),
    ],
)
def test_an_update_is_divided_only_if_each_row_says_what_becomes_of_it(
    tables: Tables, assigned: str, then: str
) -> None:
    """New matching rows get the same time as the others, and a number of their own."""
    found = lakegate.explain(tables.session, tables.text(f"UPDATE {{t}} SET {assigned} WHERE id = 3"))
    assert said(found) == (Reads.ROWS, ())
    assert then in found.outcomes[OTHERS["same rows"]]


def test_words_depend_on_what_the_table_has(tables: Tables) -> None:
    """Without vectors a DELETE rewrites files, and so does an OPTIMIZE that was to leave rows out."""
    words = [
        lakegate.explain(tables.session, tables.text(f"{begin}{{{name}}}")).outcomes[OTHERS["same rows"]]
        for begin in ("DELETE FROM ", "OPTIMIZE ")
        for name in ("t", "plain")
    ]
    assert [PARTLY in each for each in words] == [False, True, False, False]
    assert [AGAIN in each for each in words] == [False, False, False, True]


def test_files_that_come_while_a_merge_runs_are_noticed(tables: Tables, session: SparkSession, tmp_path: Path) -> None:
    """The text is looked up by each execution for itself: what one has read may be more than what is asked of others' rows."""
    folder = tmp_path / "in"
    session.range(3).selectExpr("id", "id AS v").write.parquet(str(folder))
    dml = statement(session, tables.text(f"MERGE INTO {{t}} t USING parquet.`{folder}` s{MERGE_ID}"))
    assert dml is not None
    assert facts(dml) == ()
    session.range(7, 8).selectExpr("id", "id AS v").write.mode("append").parquet(str(folder))
    assert facts(dml) == ("files of its source were added or removed while it was executed",)


def facts(dml: Dml) -> tuple[str, ...]:
    """Returns the obstacles to evaluating it again."""
    return tuple(dml.facts(has_vectors=True, has_row_ids=False).obstacles)


@pytest.mark.parametrize("text", ["SELECT 1", "DELETE FROM local_rows WHERE id = 1", "DELETE FRM x", "VACUUM {t}"])
def test_what_is_no_statement_on_a_table_is_not_explained(tables: Tables, text: str) -> None:
    """It says so; nothing is done."""
    with pytest.raises(InvalidRequest, match="nothing was done"):
        lakegate.explain(tables.session, tables.text(text))


def test_why_a_text_cannot_be_parsed(tables: Tables) -> None:
    """Spark's words for it begin on their second line."""
    with pytest.raises(InvalidRequest) as raised:
        lakegate.explain(tables.session, tables.text("MERGE INTO {t} USING (VALUES (1)) s(id) ON true"))
    assert "COLUMN_ALIASES_NOT_ALLOWED" in raised.value.facts["reason"]


# ---------------------------------------------------------------------------------------------------------- DeltaTable


def merged(tables: Tables, source: DataFrame) -> Any:
    return tables.target.alias("t").merge(source.alias("s"), "t.id = s.id").whenMatchedUpdate(set={"v": "s.v"})


def is_odd() -> Any:
    """A function of the row, in Python."""
    return udf(lambda value: value % 2 == 1, "boolean")


CALLS: dict[str, tuple[Callable[[Tables], Explanation], Reads, tuple[str, ...]]] = {
    "delete": (lambda its: its.target.explain_delete("v = 1"), Reads.ROWS, ()),
    "delete all": (lambda its: its.target.explain_delete(), Reads.ROWS, ()),
    "delete by a function": (lambda its: its.target.explain_delete(is_odd()(F.col("v"))), Reads.ROWS, ()),
    "delete by a function of chance": (
        lambda its: its.target.explain_delete(is_odd().asNondeterministic()(F.col("v"))),
        Reads.TABLE,
        (CHANCE,),
    ),
    "delete by time": (lambda its: its.target.explain_delete(F.col("at") < F.now()), Reads.TABLE, (TIME,)),
    "delete by a frame's column": (
        lambda its: its.target.explain_delete(its.target.toDF()["v"] == 1),
        Reads.TABLE,
        (BOUND,),
    ),
    "update": (lambda its: its.target.explain_update("v = 1", {"v": "v + 1"}), Reads.ROWS, ()),
    "update by a sub-query": (
        lambda its: its.target.explain_update(f"id IN (SELECT id FROM delta.`{its.folder / 'o'}`)", {"v": "1"}),
        Reads.TABLE,
        (SUB_QUERY,),
    ),
    "merge rows": (lambda its: merged(its, its.rows).explain(), Reads.KEYS, ()),
    "merge a table that lives": (lambda its: merged(its, its.other()).explain(), Reads.TABLE, (LIVE,)),
    "merge a version": (lambda its: merged(its, its.other(1)).explain(), Reads.KEYS, ()),
    "merge files": (lambda its: merged(its, its.session.read.parquet(str(its.folder / "p"))).explain(), Reads.KEYS, ()),
    "merge itself": (lambda its: merged(its, its.target.toDF()).explain(), Reads.TABLE, (ITSELF,)),
    "merge itself joined": (
        lambda its: merged(its, its.rows.join(its.target.toDF().select("id"), "id")).explain(),
        Reads.TABLE,
        (ITSELF,),
    ),
    "merge numbers of chance": (lambda its: merged(its, its.rows.withColumn("v", F.rand())).explain(), Reads.KEYS, ()),
    "merge keys of chance": (
        lambda its: merged(its, its.rows.withColumn("id", F.round(F.rand()))).explain(),
        Reads.TABLE,
        ("its source is not deterministic",),
    ),
    "merge what a query says": (
        lambda its: (
            its.target.alias("t")
            .merge(its.rows.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.v = 1")
            .whenNotMatchedInsert(values={"id": "s.id", "v": f"(SELECT count(*) FROM delta.`{its.folder / 't'}`)"})
            .explain()
        ),
        Reads.TABLE,
        (ASSIGNS,),
    ),
    "merge what a frame says": (
        lambda its: (
            its.target.alias("t")
            .merge(its.rows.alias("s"), "t.id = s.id")
            .whenMatchedUpdate(set={"v": its.other().agg(F.max("v")).scalar()})
            .explain()
        ),
        Reads.TABLE,
        (ASSIGNS,),
    ),
    "merge all": (
        lambda its: (
            its.target.alias("t")
            .merge(its.rows.alias("s"), "t.id = s.id")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsert(values={"id": "id", "v": F.col("v") + 1})
            .explain()
        ),
        Reads.KEYS,
        (),
    ),
    "merge one row of each key": (lambda its: merged(its, its.rows.dropDuplicates(["id"])).explain(), Reads.KEYS, ()),
    "merge one row of each value": (
        lambda its: merged(its, its.rows.dropDuplicates(["v"])).explain(),
        Reads.TABLE,
        (SOME,),
    ),
    "merge one row of each group that a function takes": (
        lambda its: merged(
            its, its.rows.groupBy("v").applyInPandas(lambda group: group.head(1), "id BIGINT, v BIGINT")
        ).explain(),
        Reads.TABLE,
        (SOME,),
    ),
    "merge rows once": (lambda its: merged(its, its.rows.dropDuplicates()).explain(), Reads.KEYS, ()),
    "merge a sample": (lambda its: merged(its, its.rows.sample(0.5)).explain(), Reads.TABLE, (SOME,)),
    "merge by time": (
        lambda its: merged(its, its.rows).whenNotMatchedBySourceDelete("t.at < now()").explain(),
        Reads.TABLE,
        (TIME,),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_classified_by_its_plan(tables: Tables, name: str) -> None:
    """As with SQL."""
    ask, reads, obstacles = CALLS[name]
    assert said(ask(tables)) == (reads, obstacles)
    assert len(commit_paths(str(tables.folder / "t"))) == 1


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        (lambda merge: merge.whenMatchedDelete(), (True, False)),
        (lambda merge: merge.whenMatchedDelete("t.v = 1"), (False, False)),
        (lambda merge: merge.whenMatchedDelete("t.v = 1").whenMatchedUpdateAll(), (True, False)),
        (lambda merge: merge.whenNotMatchedInsertAll(), (False, False)),
        (lambda merge: merge.whenNotMatchedBySourceDelete("t.v = 1"), (False, True)),
    ],
    ids=["all that match", "some that match", "some, then the others", "none", "those without a source"],
)
def test_what_a_merge_writes_is_known(
    tables: Tables, clause: Callable[[Any], Any], expected: tuple[bool, bool]
) -> None:
    """Whether it writes every row that it matches, and whether it asks a condition of rows without a source."""
    merge = clause(tables.target.alias("t").merge(tables.rows.alias("s"), "t.id = s.id"))
    found = merge._clauses.dml(lambda: None).facts(has_vectors=True, has_row_ids=False)
    assert (found.writes_all_matched, found.has_condition) == expected


Said = Callable[["Tables"], Any]
DIVIDED: dict[str, tuple[Said, bool]] = {
    "update": (lambda its: merged(its, its.rows), True),
    "update all": (lambda its: onto(its, its.rows).whenMatchedUpdateAll("s.v > t.v"), True),
    "delete, then update": (lambda its: merged(its, its.rows).whenMatchedDelete("t.v = 1"), True),
    "what the row says": (lambda its: onto(its, its.rows).whenMatchedUpdate(set={"v": "t.v + s.v"}), True),
    "insert, too": (lambda its: merged(its, its.rows).whenNotMatchedInsertAll(), False),
    "insert first": (lambda its: onto(its, its.rows).whenNotMatchedInsertAll().whenMatchedDelete(), False),
    "without a source": (lambda its: merged(its, its.rows).whenNotMatchedBySourceDelete("t.v = 1"), False),
    "new columns": (lambda its: merged(its, its.rows).withSchemaEvolution(), False),
    "by the time": (lambda its: onto(its, its.rows).whenMatchedUpdate("t.at < now()", {"v": "s.v"}), False),
    "to the time": (lambda its: onto(its, its.rows).whenMatchedUpdate(set={"at": "now()"}), False),
    "by chance": (lambda its: onto(its, its.rows).whenMatchedDelete("rand() < 0.5"), False),
    "to what the source has by chance": (lambda its: merged(its, its.rows.withColumn("v", F.rand())), False),
    "to one of many": (lambda its: merged(its, its.rows.dropDuplicates(["id"])), False),
    "to what rows come to": (
        lambda its: merged(its, its.rows.groupBy("id").agg(F.max("v").alias("v"))),
        True,
    ),
    "bound to a frame": (lambda its: onto(its, its.rows).whenMatchedDelete(its.target.toDF()["v"] == 1), False),
}
"""A MERGE → whether it may be executed on some files later than on others."""


def onto(tables: Tables, source: DataFrame) -> Any:
    return tables.target.alias("t").merge(source.alias("s"), "t.id = s.id")


@pytest.mark.parametrize("name", DIVIDED)
def test_a_merge_is_divided_where_each_row_says_what_becomes_of_it(tables: Tables, name: str) -> None:
    """It has nothing but WHEN MATCHED, and what it asks and assigns is the same whenever it is executed."""
    say, expected = DIVIDED[name]
    dml = say(tables)._clauses.dml(lambda: None)
    assert classify(dml.facts(has_vectors=True, has_row_ids=False)).is_divisible is expected


@pytest.mark.parametrize(
    ("clauses", "expected"),
    [
        ("WHEN MATCHED THEN UPDATE SET v = s.v", True),
        ("WHEN MATCHED AND t.v = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET *", True),
        ("WHEN MATCHED THEN UPDATE SET s = 'no time'", True),
        ("WHEN MATCHED THEN UPDATE SET at = now()", False),
        ("WHEN MATCHED THEN UPDATE SET at = 'now'", False),
        ("WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)", False),
        ("WHEN NOT MATCHED BY SOURCE THEN DELETE", False),
    ],
)
@pytest.mark.parametrize("evolution", ["", "WITH SCHEMA EVOLUTION "])
def test_a_merge_that_is_text_is_divided_as_well(
    tables: Tables, clauses: str, evolution: str, *, expected: bool
) -> None:
    """Its clauses are taken from Spark's parser."""
    source = "(SELECT * FROM VALUES (1L, 1L, DATE'2026-01-01') AS x(id, v, at))"
    text = tables.text(f"MERGE {evolution}INTO {{t}} t USING {source} s ON t.id = s.id {clauses}")
    dml = statement(tables.session, text)
    assert dml is not None
    found = classify(dml.facts(has_vectors=True, has_row_ids=False)).is_divisible
    assert found is (expected and not evolution)


@pytest.mark.parametrize(
    ("on", "keys"),
    [
        ("t.id = s.id", ("id",)),
        ("s.id = t.id AND t.v = s.v + 1 AND s.id < 9", ("id", "v")),
        ("t.id = s.id OR t.v = s.v", ()),
        ("t.id < s.id AND t.at = DATE'2026-01-01'", ()),
    ],
)
def test_the_keys_of_a_merge_are_named(tables: Tables, on: str, keys: tuple[str, ...]) -> None:
    """Columns of the table that each pair has equal to something of the source."""
    found = lakegate.explain(
        tables.session, tables.text(f"MERGE INTO {{t}} t USING local_rows s ON {on} WHEN MATCHED THEN DELETE")
    )
    assert set(found.keys) == set(keys)
    assert (f"  keys: {', '.join(found.keys)}" in str(found).splitlines()) == bool(keys)


def test_an_optimize_is_explained(tables: Tables) -> None:
    """As its text is, and nothing is executed."""
    builder = tables.target.optimize()
    found = builder.explain()
    assert found == lakegate.explain(tables.session, tables.text("OPTIMIZE {t}"))
    assert found.reads == READS[Reads.PLACES]
    assert len(commit_paths(str(tables.folder / "t"))) == 1


# ----------------------------------------------------------------------------------------------------- the command


def test_the_command_tells_it(tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text and as JSON; and the exit status for a text without a statement."""
    monkeypatch.chdir(tmp_path)
    text = tables.text("DELETE FROM {t} WHERE id IN (SELECT id FROM {o})")
    ran = command("explain", text)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == f"DELETE of file:{tables.folder / 't'}"
    assert "  depends on: more than single rows" in lines
    assert f"  because {SUB_QUERY}" in lines
    assert f"    rows are appended: executed again {AGAIN}" in lines
    told = json.loads(command("explain", text, "--output", "json").out)
    assert (told["operation"], told["obstacles"], told["table"]) == (
        "DELETE",
        [SUB_QUERY],
        f"file:{tables.folder / 't'}",
    )
    assert told["keys"] == []
    refused = command("explain", "SELECT 1")
    assert (refused.code, refused.out) == (2, "")
    assert "only DELETE, UPDATE, MERGE, INSERT, OPTIMIZE and REORG … APPLY (PURGE) of a Delta" in refused.err
    assert len(commit_paths(str(tables.folder / "t"))) == 1
