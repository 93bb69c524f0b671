"""Rows that a target passes over without an error are found by counting: no statement loses a row in silence."""

from __future__ import annotations

import pytest

from lakegate.demo.database_servers import Database
from lakegate.errors import ConstraintViolated, UnsupportedTable
from tests.syncs.short_changes import Step, c, changes_of, d, u
from tests.syncs.target_databases import KINDS, fresh, sync

SKIPS = "CREATE FUNCTION skips() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v varchar(20), w varchar(20))"
SQLITE_TRIGGER = "CREATE TRIGGER g BEFORE {} ON t WHEN {} BEGIN SELECT RAISE(IGNORE); END"
POSTGRES_TRIGGER = "CREATE TRIGGER g BEFORE {} ON t FOR EACH ROW WHEN ({}) EXECUTE FUNCTION skips()"
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "postgres trigger insert": ("postgres", (SKIPS, TABLE, POSTGRES_TRIGGER.format("INSERT", "NEW.v = 'no'"))),
    "postgres trigger update": ("postgres", (SKIPS, TABLE, POSTGRES_TRIGGER.format("UPDATE", "NEW.v = 'no'"))),
    "postgres trigger delete": ("postgres", (SKIPS, TABLE, POSTGRES_TRIGGER.format("DELETE", "OLD.v = 'no'"))),
    "postgres rule insert": ("postgres", (TABLE, "CREATE RULE r AS ON INSERT TO t WHERE NEW.v = 'no' DO INSTEAD NOTHING")),
    "postgres rule delete": ("postgres", (TABLE, "CREATE RULE r AS ON DELETE TO t WHERE OLD.v = 'no' DO INSTEAD NOTHING")),
    "sqlite trigger insert": ("sqlite", (TABLE, SQLITE_TRIGGER.format("INSERT", "NEW.v = 'no'"))),
    "sqlite trigger update": ("sqlite", (TABLE, SQLITE_TRIGGER.format("UPDATE", "NEW.v = 'no'"))),
    "sqlite trigger delete": ("sqlite", (TABLE, SQLITE_TRIGGER.format("DELETE", "OLD.v = 'no'"))),
    "sqlite conflict ignore": ("sqlite", ("CREATE TABLE t (id bigint PRIMARY KEY, v text CHECK (v <> 'no'), w text "
                                          "UNIQUE ON CONFLICT IGNORE)",)),
    "sqlite conflict replace": ("sqlite", ("CREATE TABLE t (id bigint PRIMARY KEY, v text, w text UNIQUE ON CONFLICT REPLACE)",)),
}  # fmt: skip
MARKS = {"postgres": [pytest.mark.postgres], "mariadb": [pytest.mark.mariadb], "sqlite": []}


def history(name: str) -> tuple[list[Step], set[tuple[int, str, str]]]:
    """Returns the changes of a case, and the rows of the target when only the one row is quarantined."""
    one, two, three = ({"id": n, "v": "yes", "w": str(n)} for n in (1, 2, 3))
    if "conflict" in name:
        return [c(0, one), c(1, two), c(1, {**three, "w": "1"})], {(1, "yes", "1"), (2, "yes", "2")}
    if "insert" in name:
        return [c(0, one), c(1, two), c(1, {**three, "v": "no"})], {(1, "yes", "1"), (2, "yes", "2")}
    if "update" in name:
        return [c(0, one), c(0, two), u(1, one, v="no"), c(1, three)], {
            (1, "yes", "1"),
            (2, "yes", "2"),
            (3, "yes", "3"),
        }
    return [c(0, {**one, "v": "no"}), c(0, two), d(1, {**one, "v": "no"}), c(1, three)], {
        (1, "no", "1"), (2, "yes", "2"), (3, "yes", "3"),
    }  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[kind]) for name, (kind, _) in CASES.items()])
def test_a_row_that_the_target_passes_over_is_a_violation_of_that_row(
    name: str, request: pytest.FixtureRequest
) -> None:
    """INSERT, UPDATE and DELETE; triggers, rules and conflict clauses: `stop` names the row, `quarantine` sets it apart."""
    kind, statements = CASES[name]
    steps, final = history(name)
    stopped, apart, parallel = (fresh(kind, request) for _ in range(3))
    for database in (stopped, apart, parallel):
        database.execute(*statements)
    with pytest.raises(ConstraintViolated) as error:
        sync(stopped, changes_of(*steps), changes_max=2)
    assert "rows=t " in error.value.message
    assert "conflict" in name or "skipped it" in error.value.message
    for database, mode in ((apart, "atomic"), (parallel, "parallel")):
        done = sync(database, changes_of(*steps), changes_max=2, on_violation="quarantine", mode=mode, parallelism=2)
        assert sum(len(each.complete.dead) for each in done if each.complete) == 1
        assert {tuple(row.values()) for row in database.rows("t")} == final


@pytest.mark.postgres
def test_rows_that_a_trigger_writes_elsewhere_are_there(request: pytest.FixtureRequest) -> None:
    """Partitions of the old kind: the parent's trigger inserts into a child and returns NULL. That is no loss."""
    database = fresh("postgres", request)
    database.execute(
        TABLE, "CREATE TABLE t_1 () INHERITS (t)",
        "CREATE FUNCTION routes() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO t_1 SELECT NEW.*; RETURN NULL; END'",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION routes()",
    )  # fmt: skip
    one = {"id": 1, "v": "a", "w": None}
    sync(database, changes_of(c(0, one), u(1, one, v="b"), c(1, {"id": 2, "v": "c", "w": "x"})), changes_max=1)
    assert sorted(database.query("SELECT id, v FROM t_1")) == [(1, "b"), (2, "c")]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_as_they_should_be_are_counted_as_found(kind: str, request: pytest.FixtureRequest) -> None:
    """The same change twice, a row that says its key alone, and the deletion of a row that is not there."""
    database = fresh(kind, request)
    database.execute(TABLE, "CREATE TABLE k (id bigint PRIMARY KEY)")
    one = {"id": 1, "v": "a", "w": None}
    steps = [c(0, one), u(1, one), c(2, {"id": 5}, table="k"), u(3, {"id": 5}, table="k"), d(4, {"id": 9}, table="k")]
    for stream in ("s", "again"):
        sync(database, changes_of(*steps), changes_max=1, stream=stream)
    assert database.query("SELECT id, v FROM t") + database.query("SELECT id FROM k") == [(1, "a"), (5,)]


def bare(database: Database, *more: str) -> None:
    """A table without a key."""
    database.execute("CREATE TABLE bare (a bigint, b varchar(9))", *more)


def test_a_table_without_a_key_loses_no_row_in_silence(request: pytest.FixtureRequest) -> None:
    """Its rows are written one by one, and each is counted; a row that was not there to be deleted is none that stays."""
    for what, steps in (
        ("INSERT", [c(0, {"a": 1, "b": "no"}, table="bare")]),
        ("DELETE", [c(0, {"a": 1, "b": "no"}, table="bare"), d(1, {"a": 1, "b": "no"}, table="bare")]),
    ):
        database = fresh("sqlite", request)
        when = "NEW.b = 'no'" if what == "INSERT" else "OLD.b = 'no'"
        bare(database, SQLITE_TRIGGER.format(what, when).replace(" t ", " bare "))
        with pytest.raises(ConstraintViolated, match="skipped it"):
            sync(database, changes_of(*steps), changes_max=1)
    database = fresh("sqlite", request)
    bare(database)
    sync(
        database,
        changes_of(c(0, {"a": 1, "b": "x"}, table="bare"), d(1, {"a": 2, "b": "y"}, table="bare")),
        changes_max=1,
    )
    assert len(database.rows("bare")) == 1


@pytest.mark.postgres
def test_rows_of_partitions_without_a_key_are_distinguished(request: pytest.FixtureRequest) -> None:
    """A row's place is unique within its partition only: one row is deleted, not one of each partition."""
    database = fresh("postgres", request)
    database.execute(
        "CREATE TABLE bare (a bigint, b text) PARTITION BY RANGE (a)",
        *(f"CREATE TABLE bare_{n} PARTITION OF bare FOR VALUES FROM ({n}) TO ({n + 1})" for n in range(3)),
        *(f"INSERT INTO bare VALUES ({n}, 'x')" for n in range(3)),
    )
    sync(database, changes_of(d(0, {"a": 1, "b": "x"}, table="bare")))
    assert sorted(database.query("SELECT a FROM bare")) == [(0,), (2,)]


@pytest.mark.postgres
def test_a_table_is_emptied_or_it_is_said(request: pytest.FixtureRequest) -> None:
    """A rule that keeps rows from being deleted, on a table that foreign keys lead to."""
    database = fresh("postgres", request)
    database.execute(
        TABLE, "CREATE TABLE child (id bigint PRIMARY KEY, t_id bigint REFERENCES t (id))",
        "INSERT INTO t VALUES (1, 'a', 'b')", "CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING",
    )  # fmt: skip
    with pytest.raises(ConstraintViolated, match="skipped it"):
        sync(database, changes_of((0, "t", "t", None, None)))


@pytest.mark.postgres
def test_rows_that_a_policy_hides_are_not_taken_for_rows_that_are_not_there(request: pytest.FixtureRequest) -> None:
    """A role under row-level security neither sees nor deletes them: refused, before anything is written."""
    database = fresh("postgres", request)
    role = database.dsn.rpartition("%3D")[2]
    schema = role
    database.execute(
        TABLE, "INSERT INTO t VALUES (1, 'mine', 'a'), (2, 'other', 'b')", f"CREATE ROLE {role} LOGIN",
        f"GRANT ALL ON SCHEMA {schema} TO {role}", f"GRANT ALL ON t TO {role}", "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON t USING (v = 'mine')",
    )  # fmt: skip
    limited = Database("postgres", database.dsn.replace("postgres@", f"{role}@"))
    with pytest.raises(UnsupportedTable, match="row-level security"):
        sync(limited, changes_of(d(0, {"id": 2, "v": "other", "w": "b"})))
    assert len(database.rows("t")) == 2
