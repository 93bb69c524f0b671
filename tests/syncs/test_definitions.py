"""Statements of a source that the target allows: a stated list, on the sync's tables, never on control tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakegate.errors import InvalidRequest
from lakegate.syncs.plan.change import Change
from lakegate.syncs.plan.definition import require_allowed
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.sources.files import ChangeFiles
from tests.syncs.short_changes import c, changes_of
from tests.syncs.target_databases import KINDS, fresh, sync

ALLOWED = [
    "ALTER TABLE people ADD COLUMN nick varchar(20) NOT NULL DEFAULT 'it''s'",
    'alter table "people" add x numeric(10,2) default -1.5, drop column "y";',
    "ALTER TABLE `people` MODIFY COLUMN b bigint(20) unsigned AFTER id",
    "ALTER TABLE people ALTER COLUMN b SET DATA TYPE timestamp(6) with time zone",
    "ALTER TABLE people RENAME COLUMN a TO b",
    "ALTER TABLE people ADD CONSTRAINT k UNIQUE (a, b), DROP CONSTRAINT IF EXISTS old",
    "ALTER TABLE people ADD FOREIGN KEY (firm) REFERENCES firms (id) ON DELETE SET NULL ON UPDATE CASCADE",
    "CREATE UNIQUE INDEX IF NOT EXISTS i ON people (a DESC, b)",
    "DROP INDEX i ON people",
    "DROP INDEX own",
    "CREATE TABLE IF NOT EXISTS people (id bigint PRIMARY KEY, kind enum('a','b'), UNIQUE (kind))",
    "ALTER TABLE people ALTER b DROP DEFAULT, ALTER b SET NOT NULL, ADD created timestamp DEFAULT CURRENT_TIMESTAMP",
]
REFUSED = [
    "DROP TABLE people", "DELETE FROM people", "TRUNCATE people", "GRANT ALL ON people TO public", "",
    "ALTER TABLE people ADD x int; DROP TABLE people", "ALTER TABLE people ADD x int DEFAULT (SELECT 1)",
    "ALTER TABLE people ADD x text DEFAULT pg_read_file('/etc/passwd')", "ALTER TABLE people RENAME TO other",
    "ALTER TABLE people ALTER b TYPE text USING lo_import('/etc/passwd')", "ALTER TABLE people OWNER TO me",
    "ALTER TABLE payroll ADD COLUMN x int", "ALTER TABLE lakegate_stream DROP COLUMN epoch",
    "CREATE INDEX i ON people (lower(a))", "CREATE INDEX i ON people (a) WHERE secret()", "CREATE INDEX i ON payroll (a)",
    "CREATE TABLE people AS SELECT * FROM payroll", "CREATE TABLE people (LIKE payroll)",
    "CREATE TABLE people (a int GENERATED ALWAYS AS (f(1)) STORED)", "CREATE TABLE people (a int CHECK (f(a)))",
    "ALTER TABLE people ADD FOREIGN KEY (a) REFERENCES payroll (id)", "DROP INDEX of_another", "DROP INDEX i ON payroll",
    "ALTER TABLE people ADD x int /* */", "ALTER TABLE people ADD x int -- y", "ALTER TABLE people ADD x text DEFAULT E'a'",
    "ALTER TABLE people ADD x text DEFAULT 'a\\' y'", "ALTER TABLE pg_catalog.people ADD x int",
    'ALTER TABLE "People" ADD x int', "ALTER TABLE people ADD x int DEFAULT $$a$$", "ALTER TABLE people DISABLE TRIGGER ALL",
    "CREATE TRIGGER g BEFORE INSERT ON people EXECUTE FUNCTION f()", "ALTER TABLE people ADD x int DROP COLUMN y",
    "COPY people FROM PROGRAM 'id'", "ATTACH DATABASE 'x' AS y", "SET GLOBAL x = 1", "ALTER TABLE people SET TABLESPACE x",
]  # fmt: skip


def allow(sql: str) -> None:
    """Asks for a table `people` of a sync that has `firms`, too."""
    require_allowed(sql, "people", tables={"people", "firms"}, own_indexes={"own"}, seq=7)


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_statement_of_the_list_is_allowed(sql: str) -> None:
    """In the spellings of the three databases."""
    allow(sql)


@pytest.mark.parametrize("sql", REFUSED)
def test_any_other_statement_is_refused(sql: str) -> None:
    """Other statements, other tables, functions, subqueries, comments, and a second statement behind the first."""
    with pytest.raises(InvalidRequest, match="not on the list") as error:
        allow(sql)
    assert "position=7" in error.value.message


def test_no_prefix_of_an_allowed_statement_takes_more_than_the_list() -> None:
    """Whatever stands behind an allowed statement makes it one that is not."""
    for sql in ALLOWED:
        for tail in ("x y", "(", "; SELECT 1", "USING f()", "|| 1", "AS (f())"):
            with pytest.raises(InvalidRequest):
                allow(sql.rstrip(";") + " " + tail)


def ddl(sql: str, table: str = "t") -> Change:
    """A statement of the source."""
    return Change(seq=0, tx=None, table=table, op="ddl", sql=sql)


@pytest.mark.parametrize("kind", KINDS)
def test_statements_need_the_syncs_leave(kind: str, request: pytest.FixtureRequest) -> None:
    """Not without `ddl: apply`; with it for tables that the sync names; nothing is written by those that are refused."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    add = "ALTER TABLE {} ADD COLUMN x int"
    for change, settings, words in (
        (ddl(add.format("t")), {"ddl": "stop"}, "does not execute any"),
        (ddl(add.format("other"), "other"), {"ddl": "apply", "tables": frozenset({"t"})}, "does not name"),
        (ddl(add.format("other")), {"ddl": "apply"}, "it is for the table other"),
        (ddl("DROP TABLE t"), {"ddl": "apply"}, "not on the list"),
        (ddl("ALTER TABLE lakegate_stream ADD x int", "lakegate_stream"), {"ddl": "apply"}, "Lakegate's own"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            sync(database, [change], **settings)
    assert next(set(row) for row in database.rows("lakegate_stream")).isdisjoint({"x"})
    sync(database, [ddl(add.format("t"))], ddl="apply", tables=frozenset({"t"}))
    sync(database, [Change(seq=1, tx="1", table="t", op="c", after={"id": 1, "x": 5})])
    assert database.rows("t") == [{"id": 1, "x": 5}]


def test_without_names_a_sync_changes_the_tables_of_its_changes_and_new_ones(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also after a restart; a table of somebody else in the target is not for a statement of the source."""
    database = fresh("sqlite", request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE victim (id int PRIMARY KEY)")
    lines: list[str] = []

    def bring(table: str, sql: str | None = None, **row: Any) -> None:
        said = {"op": "c", "after": row} if sql is None else {"op": "ddl", "sql": sql}
        lines.append(json.dumps({"seq": len(lines), "tx": str(len(lines)), "table": table, **said}) + "\n")
        (tmp_path / "c.jsonl").write_text("".join(lines))
        target = database.target()
        try:
            list(
                run(
                    ChangeFiles(files=str(tmp_path / "c.jsonl")), target, stream="s", settings=SyncSettings(ddl="apply")
                )
            )
        finally:
            target.close()

    bring("t", id=1)
    bring("t", "ALTER TABLE t ADD COLUMN x int")
    bring("n", "CREATE TABLE n (id int PRIMARY KEY)")
    bring("n", "ALTER TABLE n ADD COLUMN x int")
    bring("n", id=1, x=2)
    assert database.rows("n") == [{"id": 1, "x": 2}]
    for sql in ("ALTER TABLE victim ADD COLUMN x int", "CREATE INDEX i ON victim (id)"):
        with pytest.raises(InvalidRequest, match=r"does not name.*table=victim"):
            bring("victim", sql)
        lines.pop()
    assert database.query("SELECT sql FROM sqlite_master WHERE tbl_name = 'victim' AND sql IS NOT NULL") == [
        ("CREATE TABLE victim (id int PRIMARY KEY)",)
    ]


SYSTEM = {
    "postgres": ("pg_authid", "pg_catalog.pg_class"),
    "mariadb": ("mysql.user", "information_schema.tables"),
    "sqlite": ("sqlite_master",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_change_writes_to_a_table_of_the_product_or_of_the_database(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Position, fence and dead letters are not a source's to write; nor are the database's own tables."""
    database = fresh(kind, request)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    sync(database, changes_of(c(1, {"id": 1})))
    for table in ("lakegate_stream", "LAKEGATE_DEAD", "public.lakegate_slot", "lakegate_stage_1", *SYSTEM[kind]):
        row = {"stream": "s", "epoch": 99, "last_batch": 0, "position": -1}
        for op in ("c", "t"):
            with pytest.raises(InvalidRequest):
                sync(database, [Change(seq=5, tx="5", table=table, op=op, after=row if op == "c" else None)])
    assert [row["epoch"] < 99 for row in database.rows("lakegate_stream")] == [True]
