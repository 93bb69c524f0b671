"""The how-tos "in step with Debezium", "with a Delta table" and "with PostgreSQL": what they show is what the commands print."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakegate as lg
from lakegate.config import EnvelopeTopicsSource, parse
from lakegate.demo.database_servers import fresh_postgres
from lakegate.errors import InvalidRequest
from tests.cli.command import lakegate
from tests.docs.markdown import DOCS, Fence, fences

PEOPLE = "CREATE TABLE people (id integer PRIMARY KEY, email text NOT NULL UNIQUE)"


def typed(blocks: list[Fence]) -> list[tuple[list[str], list[str]]]:
    """Commands and what they print."""
    parts = [part for one in blocks if one.kind == "console" for part in one.text.split("$ lakegate ")[1:]]
    return [(shlex.split(part.splitlines()[0]), part.splitlines()[1:]) for part in parts]


def target(root: Path, *rows: tuple[int, str]) -> None:
    """`crm.db`."""
    database = sqlite3.connect(root / "crm.db", isolation_level=None)
    database.execute(PEOPLE)
    database.executemany("INSERT INTO people VALUES (?, ?)", rows)
    database.close()


def people(root: Path) -> list[tuple[int, str]]:
    """Its rows."""
    database = sqlite3.connect(root / "crm.db")
    rows = database.execute("SELECT id, email FROM people ORDER BY id").fetchall()
    database.close()
    return rows


def test_the_page_on_debezium_shows_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its swap is in the target at the end; its part on Kafka is a file without a fault."""
    blocks = fences(DOCS / "how-to" / "sync-from-debezium.md")
    kafka, files = (one.text for one in blocks if one.kind == "yaml")
    read = parse(f"name: page\n{kafka}", origin="x", base_dir="/", environ={})
    assert isinstance(read.sync("crm").source, EnvelopeTopicsSource)
    (tmp_path / "lakegate.yml").write_text(f"name: page\n{files}")
    (tmp_path / "cdc").mkdir()
    (tmp_path / "cdc" / "1.json").write_text("".join(one.text for one in blocks if one.kind == "json"))
    target(tmp_path, (1, "a@x"), (2, "b@x"))
    monkeypatch.chdir(tmp_path)
    for command, shown in typed(blocks):
        ran = lakegate(*command)
        assert (ran.code, ran.out.splitlines()) == (0, shown), command
    assert people(tmp_path) == [(1, "b@x"), (2, "a@x")]


@pytest.mark.postgres
def test_the_page_on_postgresql_shows_what_happens(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load, and afterwards the page's way to give the sync up."""
    blocks = fences(DOCS / "how-to" / "sync-from-postgres.md")
    (part,) = (one.text for one in blocks if one.kind == "yaml")
    source, there = fresh_postgres(postgres), fresh_postgres(postgres)
    for address, database in (("postgresql://reader@db1/shop", source), ("postgresql://crm@127.0.0.1/crm", there)):
        database.execute(PEOPLE, "CREATE TABLE orders (id integer PRIMARY KEY, person integer REFERENCES people)")
        part = part.replace(address, database.dsn)
    source.execute("INSERT INTO people VALUES (1, 'a@x'), (2, 'b@x')", "INSERT INTO orders VALUES (1, 1)")
    (tmp_path / "lakegate.yml").write_text(f"name: pipeline\n{part}")
    monkeypatch.chdir(tmp_path)
    for command, shown in typed(blocks):
        ran = lakegate(*command)
        assert (ran.code, ran.out.splitlines()) == (0, shown), (command, ran.err)
    assert [there.rows(one) for one in ("people", "orders")] == [source.rows(one) for one in ("people", "orders")]
    (end,) = (one.text for one in blocks if one.kind == "sql")
    source.execute(*end.replace("PIPELINE_SYNC", "pipeline_crm").strip().split("\n"))
    assert source.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'lakegate_pipeline_crm'") == []


def test_the_page_on_tables_shows_what_happens(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load, status and resync; the function does the same, and goes on from where it was."""
    blocks = fences(DOCS / "how-to" / "sync-from-the-lake.md")
    (part,) = (one.text for one in blocks if one.kind == "yaml")
    (tmp_path / "lakegate.yml").write_text(f"name: page\n{part}")
    target(tmp_path)
    feed = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    lake = f"delta.`{tmp_path / 'lake' / 'people'}`"
    session.sql(f"CREATE TABLE {lake} (id INT, email STRING) USING delta {feed}").collect()
    session.sql(f"INSERT INTO {lake} VALUES (1, 'a@x'), (2, 'b@x')").collect()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lakegate.runtime.session_for", lambda pipeline: session)  # and not a second JVM
    for command, shown in typed(blocks):
        ran = lakegate(*command)
        assert (ran.code, ran.out.splitlines()) == (0, shown), (command, ran.err)
    session.sql(f"UPDATE {lake} SET email = CASE id WHEN 1 THEN 'b@x' ELSE 'a@x' END").collect()
    with pytest.raises(InvalidRequest, match="the target table has rows"):
        lg.sync("lake/people", to="sqlite:crm.db", name="crm", spark=session)
    report = lg.sync("lake/people", to="sqlite:crm.db", name="crm", pipeline="page", spark=session)
    assert (report.changes, report.position) == (4, 2)
    assert people(tmp_path) == [(1, "b@x"), (2, "a@x")]
