"""Ingestion, one mutate stream and one erase stream on one table, and short forms of their records and requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakegate.config import Append, Erase
from tests.stream_bench import Bench, mutate, stream, table

RECORD = "id string, alias string"
COLUMNS = "id STRING, alias STRING, person STRING"
REQUEST = "n int, alias string, person string, op string"
SET_PERSON = {"match": {"alias": "alias"}, "set_": {"person": "person"}, "delete_when": "op = 'delete'"}
ERASE = Erase(match={"person": "person"}, lift_when="op = 'lift'")


def bench(session: SparkSession, root: Path, columns: str = COLUMNS, **kind: Any) -> Bench:
    """Ingestion, one mutate stream and one erase stream on one table."""
    streams = (
        stream("In", Append(columns={"person": "alias"})),
        stream("Mut", mutate(**{**SET_PERSON, **kind})),
        stream("TTL", ERASE),
    )
    return Bench(session, str(root), streams, table(columns))


def records(*rows: str) -> list[tuple[str, str]]:
    """`"1:a"` is record 1 of alias a."""
    return [(row.split(":")[0], row.split(":")[1]) for row in rows]


def requests(*said: str) -> list[tuple[int, str | None, str | None, str]]:
    """`"a>p"` sets, `"a-"` deletes, `">p"` has no key."""
    found: list[tuple[int, str | None, str | None, str]] = []
    for n, text in enumerate(said):
        alias, _, person = text.rstrip("-").partition(">")
        found.append((n, alias or None, person or None, "delete" if text.endswith("-") else "set"))
    return found


def foreign(b: Bench, *rows: tuple[str, str, str]) -> None:
    """A writer that takes no turns appends rows."""
    b.session.createDataFrame(list(rows), COLUMNS).write.format("delta").mode("append").save(b.target)


def persons(b: Bench) -> dict[str, str]:
    """Id of each row → its person."""
    return dict(b.rows("id", "person"))
