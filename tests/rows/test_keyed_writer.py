"""The keyed writer on tables: whole tables against a serial replay, refused rows, lost tables, and no Spark job."""

from __future__ import annotations

import datetime
import random
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.errors import ConstraintViolated, InvalidRequest
from lakegate.rows.quick import QUICK_CONF

COLUMNS = (
    "id BIGINT NOT NULL, name STRING, n INT DEFAULT 7, at TIMESTAMP, twice BIGINT GENERATED ALWAYS AS (id * 2 + n)"
)
PROPERTIES = "'delta.enableDeletionVectors' = 'true', 'delta.feature.allowColumnDefaults' = 'supported'"
NEW: Mapping[str, object] = {"name": None, "n": 7, "at": None}
"""What a new row has in columns that are not given."""


def make(session: SparkSession, folder: Path, columns: str = COLUMNS, *, rows: int = 20) -> str:
    """Makes a table with rows 0 to `rows` - 1, in two files."""
    path = str(folder / "t")
    session.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta TBLPROPERTIES ({PROPERTIES})")
    if rows:
        session.sql(
            f"INSERT INTO delta.`{path}` (id, name) SELECT /*+ REPARTITION(2) */ id, concat('name-', id) FROM range({rows})"
        )
    return path


def content(session: SparkSession, path: str) -> dict[int, dict[str, Any]]:
    """The table's rows by their id, which must be different."""
    rows = [row.asDict() for row in session.read.format("delta").load(path).collect()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def replay(table: dict[int, dict[str, Any]], change: Mapping[str, Any], *, is_delete: bool) -> None:
    """Does one change on the rows, as documented."""
    if is_delete:
        table.pop(change["id"], None)
        return
    row = {**table.get(change["id"], NEW), **change}
    table[change["id"]] = {**row, "twice": row["id"] * 2 + row["n"]}


def test_rows_are_written_as_the_page_says_without_a_spark_job(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """Inserts, updates of some columns, deletes, and all three of one key, in one commit; NULL that is given is NULL."""
    path = make(session, tmp_path)
    at = datetime.datetime(2026, 5, 17, 1, 2, 3, 456789)
    expected = content(session, path)
    given: list[tuple[dict[str, Any], bool]] = [
        ({"id": 100, "name": "new"}, False),
        ({"id": 1, "name": "one"}, False),
        ({"id": 1, "n": 11, "at": at}, False),
        ({"id": 2, "name": None}, False),
        ({"id": 3}, True),
        ({"id": 4, "n": 44}, False),
        ({"id": 4}, True),
        ({"id": 5, "n": 55}, False),
        ({"id": 5}, True),
        ({"id": 5, "at": at}, False),
        ({"id": 101}, False),
        ({"id": 6}, False),
        ({"id": 999}, True),
    ]
    done: list[Any] = []

    def write() -> None:
        with lakegate.writer(session, path, key="id", delay_ms=60_000) as w:
            for number, (change, is_delete) in enumerate(given):
                keys = (change, change["id"], (change["id"],))
                done.append(w.delete(keys[number % 3]) if is_delete else w.upsert(change))

    assert jobs(write) == 0
    for change, is_delete in given:
        replay(expected, change, is_delete=is_delete)
    assert content(session, path) == expected
    assert {each.result(0) for each in done} == {lakegate.Written(version=2, rows=9)}
    assert session.conf.get(QUICK_CONF, "off") == "off"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_threads_write_the_table_of_a_serial_replay(session: SparkSession, tmp_path: Path) -> None:
    """Random changes of few keys by eight threads, each with keys of its own, while OPTIMIZE runs and others commit."""
    path = make(session, tmp_path, rows=200)
    expected = content(session, path)
    with lakegate.writer(session, path, key=["id"], flush_rows=60, compact_every=2) as w:

        def give(thread: int) -> tuple[list[tuple[dict[str, Any], bool]], list[Any]]:
            chance = random.Random(thread)
            given, done = [], []
            for _ in range(150):
                change: dict[str, Any] = {"id": chance.randrange(30) * 8 + thread}
                is_delete = chance.random() < 0.3
                if not is_delete:
                    change |= {
                        name: value
                        for name, value in (("name", str(chance.random())), ("n", chance.randrange(99)))
                        if chance.random() < 0.6
                    }
                given.append((change, is_delete))
                done.append(w.delete(change) if is_delete else w.upsert(change))
                if chance.random() < 0.03:
                    assert done[-1].result(300)
            return given, done

        with ThreadPoolExecutor(9) as pool:
            other = pool.submit(
                lambda: [
                    lakegate.sql(session, f"DELETE FROM delta.`{path}` WHERE id = {key}") for key in (1000, 7, 1001)
                ]
            )
            given = list(pool.map(give, range(7)))
            other.result()
    for changes, done in given:
        assert all(each.exception(0) is None for each in done)
        for change, is_delete in changes:
            replay(expected, change, is_delete=is_delete)
    expected.pop(7)
    assert content(session, path) == expected
    history = session.sql(f"DESCRIBE HISTORY delta.`{path}`").select("operation").collect()
    assert {"MERGE", "OPTIMIZE"} <= {row.operation for row in history}


def test_of_a_flush_only_the_refused_rows_fail(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """CHECK, NOT NULL and the length of a text, each in the middle of good rows; found without a Spark job."""
    path = make(session, tmp_path, "id BIGINT, name VARCHAR(5), n INT NOT NULL, small INT", rows=0)
    session.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (small < 100 OR small IS NULL)")
    bad: Mapping[int, Mapping[str, object]] = {11: {"small": 100}, 12: {"n": None}, 13: {"name": "longer"}}
    done: dict[int, Any] = {}

    def write() -> None:
        with lakegate.writer(session, path, key=["id"], delay_ms=60_000) as w:
            for key in range(24):
                done[key] = w.upsert({"id": key, "name": "short", "n": 1, "small": key, **bad.get(key, {})})

    assert jobs(write) == 0
    assert {key for key, each in done.items() if each.exception(0) is not None} == set(bad)
    for key, word in ((11, "small"), (12, "n"), (13, "longer")):
        assert isinstance(done[key].exception(0), ConstraintViolated)
        assert word in str(done[key].exception(0))
    assert content(session, path).keys() == set(range(24)) - set(bad)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_refused_row_is_found_with_stock_delta_as_well(session: SparkSession, tmp_path: Path) -> None:
    """Row tracking is not served without a Spark job: the error is that of a job."""
    path = make(session, tmp_path, "id BIGINT, n INT", rows=0)
    session.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    session.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (n < 100)")
    with lakegate.writer(session, path, key="id", delay_ms=60_000) as w:
        good, bad, other = (w.upsert({"id": key, "n": n}) for key, n in ((1, 1), (2, 100), (3, 3)))
    assert isinstance(bad.exception(0), ConstraintViolated)
    assert good.result(0).version is not None
    assert other.result(0).version is not None
    assert content(session, path).keys() == {1, 3}


def test_rows_are_written_when_the_block_raises_an_error_and_their_order_is_kept(
    session: SparkSession, tmp_path: Path
) -> None:
    """The last change of each key counts, over many flushes of few rows."""
    path = make(session, tmp_path, "id BIGINT, n INT", rows=0)
    with suppress(KeyError), lakegate.writer(session, path, key="id", flush_rows=7) as w:
        for number in range(40):
            w.upsert({"id": number % 4, "n": number})
        w.delete(3)
        raise KeyError
    assert {key: row["n"] for key, row in content(session, path).items()} == {0: 36, 1: 37, 2: 38}
    w.close()
    with pytest.raises(InvalidRequest, match="closed"):
        w.upsert({"id": 1, "n": 1})


def test_a_table_that_is_gone_fails_all_rows(session: SparkSession, tmp_path: Path) -> None:
    """With the error of the statement, and nothing hangs; when the table is there again, rows are written again."""
    path = make(session, tmp_path, "id BIGINT, n INT", rows=0)
    with lakegate.writer(session, path, key="id", delay_ms=60_000) as w:
        shutil.move(path, f"{path}-away")
        done = [w.upsert({"id": key, "n": 1}) for key in range(5)]
        w.flush()
        for each in done:
            assert isinstance(each.exception(0), JVM_ERRORS)
        shutil.move(f"{path}-away", path)
        w.upsert({"id": 9, "n": 9})
    assert content(session, path).keys() == {9}
    assert w.rows_failed == 5


BAD_ROWS: Mapping[str, tuple[dict[str, Any], str]] = {
    "an unknown column": ({"id": 1, "day": datetime.date(2026, 1, 1), "nome": "x"}, "no such column"),
    "no key": ({"day": datetime.date(2026, 1, 1)}, "missing"),
    "a NULL in the key": ({"id": None, "day": datetime.date(2026, 1, 1)}, "missing"),
    "a text in a number": ({"id": "1", "day": datetime.date(2026, 1, 1)}, "not a bigint"),
    "a truth in a number": ({"id": True, "day": datetime.date(2026, 1, 1)}, "not a bigint"),
    "too large": ({"id": 1 << 63, "day": datetime.date(2026, 1, 1)}, "not a bigint"),
    "a number in a text": ({"id": 1, "day": datetime.date(2026, 1, 1), "name": 5}, "not a string"),
    "half a character": ({"id": 1, "day": datetime.date(2026, 1, 1), "name": "\ud800"}, "not a string"),
    "too many digits": ({"id": 1, "day": datetime.date(2026, 1, 1), "price": Decimal("1000")}, "not a decimal"),
    "rounded": ({"id": 1, "day": datetime.date(2026, 1, 1), "price": Decimal("1.005")}, "not a decimal"),
    "no number": ({"id": 1, "day": datetime.date(2026, 1, 1), "price": Decimal("NaN")}, "not a decimal"),
    "a text for a list": ({"id": 1, "day": datetime.date(2026, 1, 1), "tags": "a"}, "not a array"),
}
GOOD_ROW: Mapping[str, object] = {
    "id": 1,
    "day": datetime.date(2026, 1, 1),
    "name": "é",
    "price": Decimal("999.990"),
    "f": 3,
    "tags": ["a", None],
    "raw": bytearray(b"\0x"),
    "at": datetime.datetime(1, 1, 1),
    "o": {"x": 1, "y": None},
}


def test_rows_that_cannot_be_of_the_table_are_refused_at_once(session: SparkSession, tmp_path: Path) -> None:
    """Each with its reason, and the others are written; the values arrive as they were given."""
    path = make(
        session,
        tmp_path,
        "id BIGINT, day DATE, name STRING, price DECIMAL(5,2), f DOUBLE, tags ARRAY<STRING>, raw BINARY, at TIMESTAMP_NTZ, "
        "o STRUCT<x: INT, y: STRING>",
        rows=0,
    )
    with lakegate.writer(session, path, key=["id", "day"]) as w:
        for row, reason in BAD_ROWS.values():
            with pytest.raises(InvalidRequest, match=reason):
                w.upsert(row)
        for key, reason in ((1, "2 columns"), ({"id": 1}, "missing"), ({**GOOD_ROW}, "key alone")):
            with pytest.raises(InvalidRequest, match=reason):
                w.delete(key)
        # A date is the same day, however it is given.
        first = w.upsert({"id": 1, "day": datetime.datetime(2026, 1, 1, 5)})
        assert w.upsert(GOOD_ROW).result(60) == first.result(60)
        w.delete((2, datetime.date(2026, 1, 1)))
    [row] = session.read.format("delta").load(path).collect()
    found = {name: value.asDict() if name == "o" else value for name, value in row.asDict().items()}
    assert found == {**GOOD_ROW, "f": 3.0}


NO_KEYS = {"f": "not compared", "s": "not compared", "c": "padded", "none": "the table has"}


def test_what_cannot_be_a_key_is_refused_when_the_writer_is_opened(session: SparkSession, tmp_path: Path) -> None:
    """And other arguments that mean nothing."""
    path = make(session, tmp_path, "id BIGINT, f DOUBLE, s STRUCT<a: INT>, c CHAR(3)", rows=0)
    for column, reason in NO_KEYS.items():
        with pytest.raises(InvalidRequest, match=reason):
            lakegate.writer(session, path, key=["id", column])
    for key in ([], ["id", "id"]):
        with pytest.raises(InvalidRequest, match="different columns"):
            lakegate.writer(session, path, key=key)
    for limits in ({"flush_rows": 0}, {"flush_rows": 10_001}, {"flush_bytes": 1 << 30}, {"compact_every": 0}):
        with pytest.raises(InvalidRequest, match=next(iter(limits))):
            lakegate.writer(session, path, key="id", **limits)  # type: ignore[arg-type]


def test_a_table_of_the_catalog_and_one_with_odd_names_of_columns(session: SparkSession, tmp_path: Path) -> None:
    """The name is looked up in the caller's session; a text that is empty is no key of a partition."""
    path = tmp_path / "t"
    session.sql("CREATE DATABASE IF NOT EXISTS keyed")
    with confs(session, {"spark.sql.session.timeZone": "Asia/Tokyo"}):
        session.sql("USE keyed")
        session.sql(
            "CREATE TABLE odd (`shape` STRING, `a b` INT, `c0` INT, at TIMESTAMP, "
            "day DATE GENERATED ALWAYS AS (CAST(at AS DATE))) "
            f"USING delta PARTITIONED BY (`shape`) LOCATION '{path}' "
            f"TBLPROPERTIES ({PROPERTIES}, 'delta.columnMapping.mode' = 'name')"
        )
        at = datetime.datetime(2026, 1, 1, 20, tzinfo=datetime.UTC)
        with lakegate.writer(session, "odd", key=("shape", "a b")) as w:
            with pytest.raises(InvalidRequest, match="partition"):
                w.upsert({"shape": "", "a b": 1})
            w.upsert({"shape": "x", "a b": 1, "c0": 2, "at": at})
            w.upsert({"shape": "x", "a b": 2, "c0": 3})
            w.flush()
            w.upsert({"shape": "x", "a b": 1, "c0": 5})
            w.delete(("x", 2))
        assert w.small_files == 2
        rows = session.sql("SELECT shape, `a b`, c0, string(day) FROM odd").collect()
    assert [tuple(row) for row in rows] == [("x", 1, 5, "2026-01-02")]
    session.sql("DROP TABLE odd")
    session.sql("USE default")


def test_a_merge_that_lost_its_commit_still_has_each_key_once(session: SparkSession, tmp_path: Path) -> None:
    """Two writers insert the same keys at the same time: both futures report success, and the table has one row for each key."""
    path = make(session, tmp_path, "id BIGINT, n INT", rows=0)
    with lakegate.writer(session, path, key="id") as one, lakegate.writer(session, path, key="id") as other:
        done = [w.upsert({"id": key, "n": n}) for key in range(50) for n, w in enumerate((one, other))]
        assert all(each.result(120).version is not None for each in done)
    assert content(session, path).keys() == set(range(50))
