"""Standing requests stand: columns that are renamed or widened, streams of a new name, request tables that are lost or set back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakegate.config import Append, Erase
from lakegate.errors import InvalidRequest
from lakegate.streams.requests.standing import RequestTables, refuse_lost
from tests.stream_bench import Bench, Crash, mutate, stream, table

MAPPED = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}


def bench(session: SparkSession, root: Path, columns: str, *streams: Any) -> Bench:
    """A table with column mapping, which an append has made already."""
    return Bench(session, str(root), streams, table(columns, properties=MAPPED))


def streams(key: str, value: str = "v", *, erase: str = "TTL") -> tuple[Any, ...]:
    """Records, standing mutations and erasures by one column, as a file that names it so would have them."""
    return (
        stream("In", Append(columns={key: "k", value: "w"} if key != "k" else {})),
        stream("Mut", mutate(match={f"{key}": "k"}, set_={f"{value}": "w"})),
        stream(erase, Erase(match={f"{key}": "k"}, lift_when=None)),
    )


def refused(b: Bench, name: str, rows: list[tuple[Any, ...]], schema: str, batch: int) -> str:
    """Returns the error that refuses a run."""
    with pytest.raises(InvalidRequest) as caught:
        b.run(name, rows, schema, batch)
    return str(caught.value)


def alter(b: Bench, sql: str) -> None:
    b.session.sql(f"ALTER TABLE delta.`{b.target}` {sql}")


@pytest.mark.matrix
def test_requests_follow_their_columns(session: SparkSession, tmp_path: Path) -> None:
    """Widened, renamed to a name that needs quotes, and dropped: erasures and mutations go on, or everybody stops."""
    b = bench(session, tmp_path, "id INT, v STRING", *streams("id"))
    record = "k bigint, w string"
    b.run("In", [(1, "a"), (2, "b"), (3, "c")], record, 0)
    b.run("TTL", [(1,)], "k bigint", 0)
    b.run("Mut", [(2, "new"), (9, "nine")], record, 0)
    alter(b, "ALTER COLUMN id TYPE BIGINT")
    b.run("In", [(1, "back"), (2, "b"), (5_000_000_000, "e")], record, 1)
    assert b.rows("id", "v") == [(2, "new"), (2, "new"), (3, "c"), (5_000_000_000, "e")]
    b.run("TTL", [(5_000_000_000,), (2,)], "k bigint", 1)
    assert b.rows("id") == [(3,)]
    alter(b, "RENAME COLUMN id TO `the person`")
    alter(b, "RENAME COLUMN v TO `a, b`")
    assert "other columns than `match` names: the person" in refused(b, "In", [(1, "x")], record, 2)
    b.streams = streams("the person", "a, b")
    b.run("In", [(1, "back"), (5_000_000_000, "back"), (9, "x"), (4, "d")], record, 2)
    assert b.rows("`the person`", "`a, b`") == [(3, "c"), (4, "d"), (9, "nine")]
    b.run("Mut", [(4, "four"), (10, "ten")], record, 1)
    b.run("TTL", [(9,), (11,)], "k bigint", 2)
    b.run("In", [(9, "x"), (10, "x"), (11, "x")], record, 3)
    assert b.rows("`the person`", "`a, b`") == [(10, "ten"), (3, "c"), (4, "four")]
    assert {row.state for row in b.request_rows("TTL")} == {"applied"}
    alter(b, "DROP COLUMN `the person`")
    said = refused(b, "In", [(1, "x")], record, 4)
    assert "stand for the column the person, which the table no longer has" in said


@pytest.mark.matrix
def test_requests_follow_their_stream_to_a_new_name(session: SparkSession, tmp_path: Path) -> None:
    """It takes them over, once, wherever it dies; removed it stops the table's streams; two that could be it are none."""
    b = bench(session, tmp_path, "id STRING, v STRING", *streams("id"))
    record = "k string, w string"
    b.run("In", [("1", "a"), ("2", "b")], record, 0)
    b.run("TTL", [("1",)], "k string", 0)
    b.streams = streams("id")[:2]
    assert "requests of TTL stand for the table, and TTL is no stream of the file" in refused(
        b, "In", [("1", "x")], record, 1
    )
    assert "requests of TTL stand" in refused(b, "Mut", [("1", "x")], record, 0)
    b.streams = (*streams("id", erase="One"), streams("id", erase="Two")[2])
    assert "no stream of the file" in refused(b, "In", [("1", "x")], record, 1)
    b.streams = streams("id", erase="Gone")
    with pytest.raises(Crash):
        b.run("In", [("1", "x"), ("3", "c")], record, 1, crash_after=frozenset({"take over"}))
    b.run("In", [("1", "x"), ("3", "c")], record, 1)
    assert b.rows("id") == [("2",), ("3",)]
    assert not Path(f"{b.root}/_lakegate/requests/TTL").exists()
    b.run("Gone", [("3",)], "k string", 0)
    assert b.rows("id") == [("2",)]
    # Rows that others bring are still looked for, as before the stream had its new name.
    session.createDataFrame([("1", "x")], "id string, v string").write.format("delta").mode("append").save(b.target)
    assert b.stream("Gone").has_sweep_work()
    b.sweep("Gone", 0)
    assert b.rows("id") == [("2",)]
    b.streams = streams("id")
    b.run("In", [("1", "x"), ("3", "x"), ("4", "d")], record, 2)
    assert b.rows("id") == [("2",), ("4",)]


@pytest.mark.matrix
def test_a_request_table_that_is_gone_or_older_stops_the_streams(session: SparkSession, tmp_path: Path) -> None:
    """Moved away, restored from an older copy, recreated, or set back by RESTORE: no stream appends, nor does a user's own job."""
    b = bench(session, tmp_path, "id STRING, v STRING", *streams("id"))
    record = "k string, w string"
    requests, old, new = (tmp_path / name for name in ("_lakegate/requests/TTL", "old", "new"))
    b.run("In", [("1", "a"), ("2", "b")], record, 0)
    b.run("TTL", [("1",)], "k string", 0)
    shutil.copytree(requests, old)
    b.run("TTL", [("2",)], "k string", 1)
    shutil.move(requests, new)
    for name, rows, schema in (
        ("In", [("1", "x")], record),
        ("Mut", [("1", "x")], record),
        ("TTL", [("1",)], "k string"),
    ):
        assert "the request table of TTL is gone" in refused(b, name, rows, schema, 9)
    with pytest.raises(InvalidRequest, match="gone"):
        refuse_lost(session, b.log, b.target)
    shutil.copytree(old, requests)
    b.log = type(b.log)(session)
    assert "batch 1 was done, and it does not have it" in refused(b, "In", [("1", "x")], record, 9)
    with pytest.raises(InvalidRequest, match="older"):
        refuse_lost(session, b.log, b.target)
    shutil.rmtree(requests)
    session.createDataFrame([("1",)], "id string").write.format("delta").save(str(requests))
    b.log = type(b.log)(session)
    assert "the request table of TTL was created again" in refused(b, "In", [("1", "x")], record, 9)
    shutil.rmtree(requests)
    shutil.move(new, requests)
    b.log = type(b.log)(session)
    session.sql(f"RESTORE TABLE delta.`{requests}` TO VERSION AS OF 1")
    assert "were changed by another writer (RESTORE" in refused(b, "In", [("1", "x")], record, 9)
    assert b.rows("id") == []
    assert RequestTables(b.context()).accept_loss("TTL", reason="restored on purpose")
    b.run("In", [("1", "x")], record, 9)
    assert b.rows("id") == [("1",)]
    b.streams = streams("id")[:2]
    assert "TTL is no stream of the file" in refused(b, "In", [("2", "x")], record, 10)
    assert RequestTables(b.context()).accept_loss("TTL", reason="no longer wanted")
    b.run("In", [("2", "x")], record, 10)
    assert b.rows("id") == [("1",), ("2",)]
    assert not RequestTables(b.context()).accept_loss("Nobody", reason="a slip")


@pytest.mark.matrix
def test_a_match_column_that_delta_fills_in_is_met(session: SparkSession, tmp_path: Path) -> None:
    """A batch that does not bring the column, which is generated, or has a DEFAULT: the erased person does not come back by it."""
    kinds = (
        stream("In", Append()),
        stream("Mut", mutate(match={"tag": "k"}, set_={"note": "w"})),
        stream("TTL", Erase(match={"id": "k"}, lift_when=None)),
        stream("Tag", Erase(match={"tag": "k"}, lift_when=None)),
    )
    b = Bench(session, str(tmp_path), kinds, table(None))
    columns = "raw STRING, id STRING GENERATED ALWAYS AS (lower(raw)), tag STRING DEFAULT 'x', note STRING"
    feature = "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    session.sql(f"CREATE TABLE delta.`{b.target}` ({columns}) USING delta {feature}")
    b.run("In", [("A",), ("B",)], "raw string", 0)
    b.run("TTL", [("a",)], "k string", 0)
    b.run("Mut", [("x", "met")], "k string, w string", 0)
    b.run("In", [("A",), ("C",)], "raw string", 1)
    assert b.rows("raw", "id", "tag", "note") == [("B", "b", "x", "met"), ("C", "c", "x", "met")]
    b.run("Tag", [("x",)], "k string", 0)
    b.run("In", [("D",)], "raw string", 2)
    b.run("In", [("E", "y")], "raw string, tag string", 3)
    assert b.rows("raw", "tag", "note") == [("E", "y", None)]


def test_a_request_table_older_than_the_ledger_knows_is_found(session: SparkSession, tmp_path: Path) -> None:
    """A version that the ledger knows and the request table has not, though no note and no token tells."""
    b = bench(session, tmp_path, "id STRING, v STRING", *streams("id"))
    b.run("In", [("1", "a")], "k string, w string", 0)
    b.run("TTL", [("9",)], "k string", 0)
    context = b.context()
    location = context.requests_of(b.streams[2])
    head = b.log.head(location)
    assert RequestTables(replace(context, recorded={location: (head, 1)})).troubles() == []
    (trouble,) = RequestTables(replace(context, recorded={location: (head + 1, 1)})).troubles()
    assert "is older than it was: the ledger has its version" in trouble.what
