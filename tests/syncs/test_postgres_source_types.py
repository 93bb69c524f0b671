"""Every type of PostgreSQL, read from its log and from a snapshot, on every target: as an INSERT of the same value leaves it."""

from __future__ import annotations

import pytest

from lakegate.demo.database_servers import Database, fresh_mariadb, fresh_postgres, fresh_sqlite
from tests.syncs.postgres_source import applied, session_of, source_of
from tests.syncs.type_cases import CASES, REFUSED, Case, Held

TARGETS = [
    pytest.param("postgres", marks=pytest.mark.full_postgres),
    pytest.param("mariadb", marks=[pytest.mark.full_postgres, pytest.mark.mariadb]),
    pytest.param("sqlite", marks=pytest.mark.full_postgres),
]
SHAPES = ("point", "box", "polygon", "circle")
"""Written by PostgreSQL as texts that only PostgreSQL reads."""
TEXTS: dict[str, str] = {
    "timetz": "'10:00:00.5+00'",
    "point": "'(1.5,2.5)'",
    "box": "'(3,2),(0,0)'",
    "polygon": "'((0,0),(0,2),(3,2),(3,0))'",
    "circle": "'<(1,2),3>'",
    "bit varying": "'0101'",
    "jsonb": "'{\"a\": 12345678901234567.890}'",
}
"""Type → the text in SQLite, where it differs from that of Debezium."""
ROWS = {"bit varying": "B'0101'"}
"""Type → the value at the source, where Debezium cannot send it."""


def cases() -> list[tuple[int, Case]]:
    """PostgreSQL's types, numbered, without a second form that only Debezium has."""
    return [(n, case) for n, case in enumerate(CASES) if case.source == "PostgreSQL" and case.type != "hstore, as JSON"]


def wanted(case: Case, kind: str) -> Held:
    """The column and the value in a target."""
    type, value = {"postgres": case.postgres, "mariadb": case.mariadb, "sqlite": case.sqlite}[kind]
    if kind == "sqlite" and case.type in TEXTS:
        return type, TEXTS[case.type]
    if kind == "postgres" and case.type in ROWS:
        return type, ROWS[case.type]
    if kind == "mariadb" and case.type in SHAPES:
        return ("varchar(60)", TEXTS[case.type]) if case.type == "circle" else (type, REFUSED)
    if kind == "mariadb" and case.type == "bit varying":
        return type, "b'0101'"
    return type, value


def shown(kind: str, type: str, column: str) -> str:
    """A form in which two different values differ."""
    if kind == "postgres":
        return f"{column}::text"
    if kind == "sqlite":
        return f"typeof({column}) || quote({column})"
    is_binary = type.split("(")[0] in ("bit", "longblob", "point", "polygon")
    return f"hex({column})" if is_binary else f"cast({column} AS char)"


def with_types(server: str) -> Database:
    """A schema with the types of the cases."""
    database = fresh_postgres(server)
    database.execute(
        *(f"CREATE EXTENSION IF NOT EXISTS {name} SCHEMA public" for name in ("hstore", "ltree")),
        "CREATE TYPE mood AS ENUM ('ok', 'sad')",
    )
    return Database("postgres", database.dsn + "%2Cpublic")


@pytest.mark.every_case
@pytest.mark.parametrize("kind", TARGETS)
def test_a_value_of_each_type(kind: str, full_postgres: str, request: pytest.FixtureRequest) -> None:
    """Loaded, inserted and updated; and a value that the target does not have quarantines its row, and no other row."""
    with source_of(full_postgres) as plain:
        plain.execute(
            *(f"CREATE EXTENSION IF NOT EXISTS {name} SCHEMA public" for name in ("hstore", "ltree")),
            "CREATE TYPE mood AS ENUM ('ok', 'sad')",
        )
        source = Database("postgres", plain.dsn + "%2Cpublic")
        match kind:
            case "postgres":
                target = with_types(full_postgres)
            case "mariadb":
                target = fresh_mariadb(request.getfixturevalue("mariadb"))
            case _:
                target = fresh_sqlite(request.getfixturevalue("tmp_path"))
        taken = [(n, case) for n, case in cases() if wanted(case, kind)[1] != REFUSED]
        refused = [(n, case) for n, case in cases() if wanted(case, kind)[1] == REFUSED]
        for name, some in (("t", taken), ("o", taken), ("r", refused)):
            columns = "".join(f", c{n} {wanted(case, kind)[0]}" for n, case in some)
            target.execute(f"CREATE TABLE {name} (id int PRIMARY KEY{columns})")
            if name != "o":
                columns = "".join(f", c{n} {case.postgres[0]}" for n, case in some)
                source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY{columns})")

        def literals(some: list[tuple[int, Case]], only: int | None = None) -> str:
            values = (ROWS.get(case.type, case.postgres[1]) if only in (None, n) else "NULL" for n, case in some)
            return ", ".join(values)

        utc = {"postgres": ["SET TIME ZONE 'UTC'"], "mariadb": ["SET time_zone = '+00:00'"], "sqlite": []}[kind]
        names = ", ".join(f"c{n}" for n, _ in taken)
        target.execute(
            *utc, f"INSERT INTO o (id, {names}) VALUES (1, {', '.join(wanted(c, kind)[1] for _, c in taken)})"
        )
        nulls = ", ".join("NULL" for _ in taken)
        source.execute("SET TIME ZONE 'UTC'", f"INSERT INTO t VALUES (1, {literals(taken)}), (2, {nulls})")
        with session_of(plain, target, ["t", "r"], "    on_violation: quarantine\n", dsn=source.dsn) as session:
            applied(session)
            source.execute("SET TIME ZONE 'UTC'", f"INSERT INTO t VALUES (3, {literals(taken)}), (4, {nulls})")
            for n, _ in refused:
                source.execute(f"INSERT INTO r VALUES ({n}, {literals(refused, n)})")
            source.execute(f"UPDATE t SET ({names}) = (SELECT {names} FROM t WHERE id = 1) WHERE id = 4")
            applied(session)
            assert {one.key for one in session.kept_rows()} == {(n,) for n, _ in refused}
        for n, case in taken:
            column = shown(kind, wanted(case, kind)[0], f"c{n}")
            found = [one for (one,) in target.query(f"SELECT {column} FROM t ORDER BY id")]
            ((value,),) = target.query(f"SELECT {column} FROM o")
            assert found == [value, "nullNULL" if kind == "sqlite" else None, value, value], case
