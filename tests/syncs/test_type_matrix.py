"""Every type of PostgreSQL and MySQL on every target: as an INSERT of the same value leaves it, or its row is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakegate.demo.database_servers import Database, fresh_mariadb, fresh_postgres, fresh_sqlite
from lakegate.syncs.runner import SyncSettings, run
from lakegate.syncs.sources.debezium import DebeziumChanges
from lakegate.syncs.sources.debezium_files import EnvelopeFiles
from tests.syncs.type_cases import CASES, REFUSED, Case, Held

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sync-types.md"
TARGETS = [
    pytest.param("postgres", marks=pytest.mark.full_postgres), pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("sqlite"),
]  # fmt: skip
HEAD = """# Types of a sync

What a value of the source becomes in a target, for each type as Debezium documents it. Each line is a test: the value that
arrives is the one that an `INSERT` of the same value leaves there.

*refused*: the target has no such value. The row breaks a rule like one that breaks a key (`on_violation`); nothing is changed
to fit.

"""
TAIL = """
A column of another type takes a value as the target itself takes it from a text or a number; what does not fit is refused.

- **Bit strings.** The leading zeros of a `bit varying` are not in Debezium's message: `0101` arrives as `101`. In a column of
  SQLite that is no text, a bit string is a number.
- **Intervals.** In microseconds (`interval.handling.mode=numeric`) a month is 30.4375 days; as texts they arrive whole.
- **Nanoseconds** are in the value; the target rounds or cuts them as it does for a text of its own.
- **Exact numbers in SQLite.** A column of numbers holds 15 digits, as SQLite makes a float of more; a column of texts holds all.
- **Arrays and documents**: JSON where a target has no such type, with all digits; moments as ISO 8601 says, bytes as `\\x` and hex.
- **Geometries of PostGIS** arrive in columns `geometry` and `geography`, with their reference system; those of MariaDB and MySQL in
  its own types.
- **Vectors** arrive in pgvector's `vector`, `halfvec` and `sparsevec`, and in MariaDB's `vector`.
- **Without a schema** in the envelope, a number for a column of dates, times or intervals is refused, and so is a text for a binary
  column, unless `bytes` under [`from:`](lakegate-yml.md) says how it is written.
"""


def held(case: Case, kind: str) -> Held:
    """The column and the value in a target."""
    return {"postgres": case.postgres, "mariadb": case.mariadb, "sqlite": case.sqlite}[kind]


def empty(kind: str, request: pytest.FixtureRequest) -> Database:
    """A database with the types of the cases."""
    if kind == "sqlite":
        return fresh_sqlite(request.getfixturevalue("tmp_path"))
    if kind == "mariadb":
        return fresh_mariadb(request.getfixturevalue("mariadb"))
    database = fresh_postgres(request.getfixturevalue("full_postgres"))
    database.execute(
        *(f"CREATE EXTENSION IF NOT EXISTS {name} SCHEMA public" for name in ("hstore", "ltree")),
        "CREATE TYPE mood AS ENUM ('ok', 'sad')",
    )
    return Database("postgres", database.dsn + "%2Cpublic")


def seen(kind: str, type: str, column: str) -> str:
    """Returns a form in which two different values of a column differ."""
    if kind == "postgres":
        return f"{column}::text"
    if kind == "sqlite":
        return f"typeof({column}) || quote({column})"
    is_binary = type.split("(")[0] in ("bit", "longblob", "varbinary", "point", "polygon", "geometry")
    return f"hex({column})" if is_binary else f"cast({column} AS char)"


def messages(numbered: list[tuple[int, Case]], table: str, id: int, lsn: int, is_null: bool) -> Iterator[str]:
    """Makes messages of one row with these columns."""
    fields = [{"field": "id", "type": "int32"}, *({**case.schema, "field": f"c{n}"} for n, case in numbered)]
    images = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    after = {"id": id, **{f"c{n}": None if is_null else case.value for n, case in numbered}}
    source = {"connector": "mysql", "db": "d", "table": table, "file": "b.000001", "pos": lsn, "ts_ms": lsn}
    payload = {"op": "c", "before": None, "after": after, "source": source}
    yield json.dumps({"schema": {"type": "struct", "fields": images}, "payload": payload}) + "\n"


@pytest.mark.parametrize("kind", TARGETS)
def test_a_value_of_each_type_is_as_an_insert_leaves_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """In whole rows, next to NULLs; a value that the target does not have quarantines its row, and no other row."""
    database = empty(kind, request)
    numbered = list(enumerate(CASES))
    taken = [(n, case) for n, case in numbered if held(case, kind)[1] != REFUSED]
    refused = [(n, case) for n, case in numbered if held(case, kind)[1] == REFUSED]
    for name, cases in (("t", taken), ("o", taken), ("r", refused)):
        columns = "".join(f", c{n} {held(case, kind)[0]}" for n, case in cases)
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY{columns})")
    names = ", ".join(f"c{n}" for n, _ in taken)
    literals = ", ".join(held(case, kind)[1] for _, case in taken)
    nulls = ", ".join("NULL" for _ in taken)
    utc = {"postgres": ["SET TIME ZONE 'UTC'"], "mariadb": ["SET time_zone = '+00:00'"], "sqlite": []}[kind]
    database.execute(*utc, f"INSERT INTO o (id, {names}) VALUES (1, {literals}), (2, {nulls})")
    (tmp_path / "m").mkdir()
    lines = [*messages(taken, "t", 1, 1, False), *messages(taken, "t", 2, 2, True)]
    for place, one in enumerate(refused):
        lines += messages([one], "r", one[0], 10 + place, False)
    (tmp_path / "m" / "m.json").write_text("".join(lines))
    target = database.target()
    settings = SyncSettings(on_violation="quarantine")
    done = list(
        run(DebeziumChanges(logs=EnvelopeFiles(files=str(tmp_path / "m"))), target, stream="s", settings=settings)
    )
    target.close()
    dead = [(one.row.table, one.row.key, one.reason) for each in done if each.complete for one in each.complete.dead]
    assert [one[:2] for one in dead] == [("r", (n,)) for n, _ in refused], dead
    for n, case in taken:
        shown = seen(kind, held(case, kind)[0], f"c{n}")
        (arrived,), (null,) = database.query(f"SELECT {shown} FROM t ORDER BY id")
        ((wanted,), _) = database.query(f"SELECT {shown} FROM o ORDER BY id")
        assert (arrived, null) == (wanted, "nullNULL" if kind == "sqlite" else None), case


def test_the_reference_shows_the_matrix() -> None:
    """`LAKEGATE_WRITE_REFERENCE=1` rewrites the page."""
    lines = [HEAD]
    for source in ("PostgreSQL", "MySQL"):
        lines.append(f"## From {source}\n\n| {source} | in PostgreSQL | in MariaDB | in SQLite |\n|---|---|---|---|\n")
        for case in CASES:
            if case.source == source:
                cells = [type if value != REFUSED else f"`{type}`: *refused*" for type, value in case[4:]]
                shown = " | ".join(cell if "refused" in cell else f"`{cell}`" for cell in cells)
                lines.append(f"| {case.type} | {shown} |\n")
        lines.append("\n")
    text = "".join(lines).rstrip("\n") + "\n" + TAIL
    if os.environ.get("LAKEGATE_WRITE_REFERENCE"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text
