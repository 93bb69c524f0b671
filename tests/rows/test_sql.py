"""SQL texts that are rebased like any statement: defaults, frames and values by name, a table by its path."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.rows.committer import publisher
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.result import Result
from lakegate.rows.row_reader import LISTED_MAX
from lakegate.rows.sql import statement
from tests.delta.delta_tables import follow, make_table

COLUMNS = "id BIGINT, v BIGINT DEFAULT 7"


@pytest.fixture
def made(session: SparkSession, tmp_path: Path) -> str:
    """Rows 1 to 4, in a file each, of a table with a default."""
    properties = {"feature.allowColumnDefaults": "supported", "enableDeletionVectors": "true"}
    path = make_table(session, tmp_path / "t", COLUMNS, **properties)
    session.range(1, 5).selectExpr("id", "id AS v").repartition(4, "id").write.format("delta").mode("append").save(path)
    return f"delta.`{path}`"


def rows(session: SparkSession, made: str) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, session.sql(f"SELECT * FROM {made}").collect()))


@pytest.mark.parametrize("values", ["VALUES (9, DEFAULT)", "SELECT 9, DEFAULT", "(id) VALUES (9)"])
def test_a_default_is_known_of_its_table(session: SparkSession, made: str, values: str) -> None:
    """Such an INSERT depends on nothing, as any other: what others commit before it does not concern it."""
    ended = follow(session, f"INSERT INTO {made} {values}", f"UPDATE {made} SET v = 0 WHERE id > 1")
    assert ended.level == 1
    assert rows(session, made) == Counter([(1, 1), (2, 0), (3, 0), (4, 0), (9, 7)])


@pytest.mark.parametrize(("earlier", "level", "second"), [("v = 0 WHERE id = 2", 2, 0), ("v = 0 WHERE id = 1", 4, 2)])
def test_a_default_may_be_assigned(session: SparkSession, made: str, earlier: str, level: int, second: int) -> None:
    """Rows of others in the same file do not concern such an UPDATE; what it is executed on again is the table that has it."""
    session.sql(f"OPTIMIZE {made}")
    ended = follow(session, f"UPDATE {made} SET v = DEFAULT WHERE id = 1", f"UPDATE {made} SET {earlier}")
    assert ended.level == level
    assert rows(session, made) == Counter([(1, 7), (2, second), (3, 3), (4, 4)])


def test_frames_and_values_stand_in_the_text_by_name(session: SparkSession, made: str) -> None:
    """As `spark.sql` puts them there; none of the views that it makes for them is left."""
    source = session.createDataFrame([(2, 20), (5, 50)], "id BIGINT, v BIGINT")
    merge = f"MERGE INTO {made} t USING {{source}} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *"
    merged = lakegate.sql(session, f"{merge} WHEN NOT MATCHED THEN INSERT *", source=source)
    deleted = lakegate.sql(session, f"DELETE FROM {made} WHERE id = {{n}}", n=4)
    for each in (merged, deleted):
        assert isinstance(getattr(each, "lakegate", None), Result)
    assert rows(session, made) == Counter([(1, 1), (2, 20), (3, 3), (5, 50)])
    assert not [table for table in session.catalog.listTables() if table.name.startswith("_pyspark")]


def test_an_insert_of_a_frame_by_name_is_rebased_unchanged(session: SparkSession, made: str) -> None:
    """It reads nothing of the table, whatever its text names, and is not executed again."""
    frame = session.createDataFrame([(8, 80)], "id BIGINT, v BIGINT")
    for text in (
        "INSERT INTO {t} SELECT * FROM {{frame}}",
        "WITH x AS (SELECT * FROM {{frame}}) INSERT INTO {t} SELECT * FROM x",
    ):
        dml = statement(session, text.format(t=made), frame=frame)
        assert dml is not None
        staged = publisher(session).stage(dml)
        session.sql(f"UPDATE {made} SET v = v + 1 WHERE id < 8")
        published = publisher(session).finish(staged)
        assert (published.level, published.attempts) == (1, 1)
    assert rows(session, made) == Counter([(1, 3), (2, 4), (3, 5), (4, 6), (8, 80), (8, 80)])


@pytest.mark.slow
def test_a_purge_rebases_onto_concurrent_commits(session: SparkSession, made: str) -> None:
    """Rows that others mark meanwhile are marked in its new files; the history shows the purge as REORG."""
    session.sql(f"INSERT INTO {made} SELECT id + 10, id FROM range(10)").collect()
    session.sql(f"DELETE FROM {made} WHERE id IN (11, 12)")
    ended = follow(session, f"REORG TABLE {made} APPLY (PURGE)", f"DELETE FROM {made} WHERE id IN (2, 13)")
    assert (ended.level, ended.attempts) == (2, 1)
    kept = {(1, 1), (3, 3), (4, 4)} | {(n + 10, n) for n in (0, *range(4, 10))}
    assert rows(session, made) == Counter(kept)
    assert session.sql(f"DESCRIBE HISTORY {made} LIMIT 1").collect()[0].operation == "REORG"
    assert follow(session, f"DELETE FROM {made} WHERE id = 14", f"REORG TABLE {made} APPLY (PURGE)").version
    assert rows(session, made) == Counter(kept - {(14, 4)})
    result = lakegate.sql(session, f"REORG TABLE {made} APPLY (PURGE)")
    assert isinstance(getattr(result, "lakegate", None), Result)


def test_parameters_need_no_setting_of_spark(session: SparkSession, made: str) -> None:
    """Delta's parser of this release binds none without it. An array is no literal, and is left to it."""
    text = f"DELETE FROM {made} WHERE id = :n"
    with pytest.raises(AnalysisException, match="UNBOUND_SQL_PARAMETER"):
        session.sql(text, {"n": 4})
    for setting, number in (("on", 4), ("off", 3)):
        with confs(session, {QUICK_CONF: setting}):
            assert isinstance(getattr(lakegate.sql(session, text, {"n": number}), "lakegate", None), Result)
    with pytest.raises(AnalysisException, match="UNBOUND_SQL_PARAMETER"):
        lakegate.sql(session, text, {"m": 4})
    own = session.newSession()
    some = f"DELETE FROM {made} WHERE array_contains(:some, id)"
    with pytest.raises(AnalysisException, match="UNBOUND_SQL_PARAMETER"):
        lakegate.sql(own, some, {"some": [2]})
    own.conf.set("spark.sql.legacy.parameterSubstitution.constantsOnly", "true")
    lakegate.sql(own, some, {"some": [2]})
    assert rows(session, made) == Counter([(1, 1)])


def test_a_table_may_be_optimized_by_its_path_alone(session: SparkSession, made: str) -> None:
    """It is rebased onto a concurrent DELETE, as where the table is named."""
    path = made.removeprefix("delta.`").removesuffix("`")
    ended = follow(session, f"OPTIMIZE '{path}'", f"DELETE FROM {made} WHERE id = 2")
    assert (ended.level, ended.attempts) == (2, 1)
    assert rows(session, made) == Counter([(1, 1), (3, 3), (4, 4)])


def test_names_of_columns_may_have_dots(session: SparkSession, tmp_path: Path) -> None:
    """Also where many rows went, which are looked up among those of before."""
    path = make_table(session, tmp_path / "t", "id BIGINT, `a.b` STRING", enableDeletionVectors="true")
    many = LISTED_MAX + 50
    rows_ = session.range(2 * many).selectExpr("id", "'x' AS `a.b`").coalesce(1)
    rows_.write.format("delta").mode("append").save(path)
    merge = (
        f"MERGE INTO delta.`{path}` t USING (SELECT * FROM VALUES (1L), (-1L) AS v(id)) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id, `a.b`) VALUES (s.id, 'new')"
    )
    ended = follow(session, merge, f"DELETE FROM delta.`{path}` WHERE id < {many}")
    assert ended.level == 4
    left = Counter({(n, "x"): 1 for n in range(many, 2 * many)} | {(1, "new"): 1, (-1, "new"): 1})
    assert rows(session, f"delta.`{path}`") == left


def test_a_key_that_cannot_be_cast_is_not_asked_of_rows_that_the_merge_rules_out(
    session: SparkSession, made: str
) -> None:
    """It follows others as it was executed: an error that the MERGE itself does not raise is nobody's."""
    values = "SELECT * FROM VALUES ('id', '2'), ('name', 'two') AS s(kind, key)"
    merge = (
        f"MERGE INTO {made} t USING ({values}) s ON s.kind = 'id' AND t.id = CAST(s.key AS BIGINT) "
        "WHEN MATCHED THEN UPDATE SET v = 0"
    )
    ended = follow(session, merge, f"INSERT INTO {made} VALUES (8, 8)")
    assert ended.level == 1
    assert rows(session, made) == Counter([(1, 1), (2, 0), (3, 3), (4, 4), (8, 8)])


@pytest.mark.parametrize(("key", "level"), [("t.v = s.v", 1), ("t.id = s.id", 4)])
def test_the_newest_change_of_each_key_may_be_another_one_later(
    session: SparkSession, made: str, tmp_path: Path, key: str, level: int
) -> None:
    """Of changes that are equally new: a MERGE by what is not their key is executed again."""
    changes = str(tmp_path / "changes")
    session.createDataFrame([(8, 90), (9, 90)], "id BIGINT, v BIGINT").write.parquet(changes)
    newest = f"SELECT *, row_number() OVER (PARTITION BY v ORDER BY v) AS n FROM parquet.`{changes}`"
    merge = (
        f"MERGE INTO {made} t USING (SELECT * FROM ({newest}) WHERE n = 1) s ON {key} "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    )
    ended = follow(session, merge, f"INSERT INTO {made} VALUES (5, 5)")
    assert ended.level == level
    assert Counter(v for _, v in rows(session, made)) == Counter([1, 2, 3, 4, 5, 90])


def test_the_time_of_loading_is_what_it_was_when_the_merge_was_executed(session: SparkSession, made: str) -> None:
    """What its pairs' condition does not read of a source is never asked again."""
    merge = (
        f"MERGE INTO {made} t USING (SELECT explode(array(1, 9)) AS id, unix_micros(now()) AS v) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    ended = follow(session, merge, f"INSERT INTO {made} VALUES (5, 5)")
    assert (ended.level, ended.attempts) == (1, 1)
    found = sorted(rows(session, made))
    assert found[1:-1] == [(2, 2), (3, 3), (4, 4), (5, 5)]
    assert found[0] == (1, found[-1][1])


def test_a_statement_on_a_table_named_in_the_catalog_is_rebased(
    session: SparkSession, made: str, tmp_path: Path
) -> None:
    by_path = statement(session, f"DELETE FROM {made}")
    assert by_path is not None
    session.sql("DROP TABLE IF EXISTS named")
    session.sql(f"CREATE TABLE named USING delta LOCATION '{tmp_path}/t'")
    try:
        for name in ("named", "default.named", "spark_catalog.default.named"):
            dml = statement(session, f"DELETE FROM {name} WHERE id = 1")
            assert dml is not None
            assert dml.table == by_path.table
        staged = publisher(session).stage(dml)
        session.sql("INSERT INTO named (id) VALUES (1)")
        outcome = publisher(session).finish(staged)
        assert (outcome.level, session.table("named").where("id = 1").count()) == (2, 0)
    finally:
        session.sql("DROP TABLE named")


def test_a_name_is_looked_up_in_the_current_catalog(session: SparkSession, made: str, tmp_path: Path) -> None:
    """Not in the session's, where a Delta table may have the same name."""
    other = session.newSession()
    for key, value in {
        "": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        ".url": f"jdbc:derby:{tmp_path}/db;create=true",
        ".driver": "org.apache.derby.jdbc.EmbeddedDriver",
    }.items():
        other.conf.set(f"spark.sql.catalog.other{key}", value)
    other.sql(f"CREATE TABLE named_twice USING delta LOCATION '{tmp_path}/t'")
    try:
        other.sql("CREATE NAMESPACE other.app")
        other.sql("CREATE TABLE other.app.named_twice (id INT)")
        other.sql("USE other.app")
        assert statement(other, "INSERT INTO named_twice VALUES (2)") is None
        kept = statement(other, "DELETE FROM spark_catalog.default.named_twice WHERE id = 1")
        by_path = statement(session, f"DELETE FROM {made}")
        assert kept is not None
        assert by_path is not None
        assert kept.table == by_path.table
        version = session.sql(f"DESCRIBE HISTORY {made}").count()
        lakegate.sql(other, "INSERT INTO named_twice VALUES (2)")
        assert [row.id for row in other.sql("SELECT * FROM named_twice").collect()] == [2]
        assert session.sql(f"DESCRIBE HISTORY {made}").count() == version
    finally:
        session.sql("DROP TABLE spark_catalog.default.named_twice")


CHARS = """
CREATE TABLE {made} (c CHAR(5), w VARCHAR(5), n STRING, v INT) USING delta {partitioned}
TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')
"""


@pytest.mark.slow
@pytest.mark.parametrize("partitioned", ["", "PARTITIONED BY (c)"])
def test_a_text_on_padded_columns_is_executed_again_as_sql(
    session: SparkSession, tmp_path: Path, partitioned: str
) -> None:
    """CHAR and VARCHAR: concurrently added rows are found as SQL finds them. A MERGE on a CHAR column fails in Delta itself."""
    statements = (
        "DELETE FROM {made} WHERE c = 'ab'",
        "UPDATE {made} AS t SET v = t.v + 10, w = 'new' WHERE t.c = 'ab' AND n = 'name'",
    )
    for number, text in enumerate(statements):
        found = []
        for is_ours in (True, False):
            made = f"delta.`{tmp_path / f'{number}{is_ours}'}`"
            session.sql(CHARS.format(made=made, partitioned=partitioned))
            session.sql(f"INSERT INTO {made} VALUES ('x', 'w', 'n', 1), ('y', 'w', 'n', 2)")
            earlier = f"INSERT INTO {made} VALUES ('ab', 'w', 'name', 3)"
            if is_ours:
                assert follow(session, text.format(made=made), earlier).level == 4, text
            else:
                session.sql(earlier)
                session.sql(text.format(made=made))
            found.append(rows(session, made))
        assert found[0] == found[1], text
