"""A bad row affects no other row: a row that a table refuses is set aside with its reason, and the rest is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakegate.config import Append, Erase
from lakegate.delta.jvm import JVM_ERRORS
from lakegate.errors import InvalidRequest
from lakegate.streams.pipeline_stream import StreamWork
from lakegate.telemetry.events import Noticed
from tests.stream_bench import Bench, Crash, mutate, stream, table

KEPT = "dead_letter"
TABLE = (
    "id BIGINT NOT NULL, v BIGINT, word VARCHAR(3), words ARRAY<VARCHAR(3)>, part STRUCT<a: INT NOT NULL, b: VARCHAR(2)>, "
    "low BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2), size BIGINT DEFAULT 1"
)
RECORD = (
    "id bigint, v bigint, word string, words array<string>, part struct<a: int, b: string>, low bigint, twice bigint, "
    "text string"
)


def lake(session: SparkSession, root: Path, columns: str, checks: dict[str, str], *streams: Any) -> Bench:
    """A table with constraints, and streams on it."""
    b = Bench(session, str(root), tuple(streams), table(columns))
    defaults = ", 'delta.feature.allowColumnDefaults' = 'supported'" if "DEFAULT" in columns else ""
    session.sql(
        f"CREATE TABLE delta.`{b.target}` ({columns}) USING delta "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = 'true'{defaults})"
    )
    for name, sql in checks.items():
        session.sql(f"ALTER TABLE delta.`{b.target}` ADD CONSTRAINT {name} CHECK ({sql})")
    return b


def letters(b: Bench, name: str) -> dict[str, str]:
    """Place in the source → reason."""
    found = b.session.read.format("delta").load(f"{b.root}/_lakegate/dead_letters/{name}").collect()
    assert all(row.raw for row in found), "each is kept as it came"
    return {row.position: row.reason for row in found}


def record(id_: int | None, **more: Any) -> tuple[Any, ...]:
    """A good one, but for what is said."""
    given = {
        "v": 1,
        "word": "abc",
        "words": ["abc"],
        "part": (1, "b"),
        "low": 0,
        "twice": None if id_ is None else 2 * id_,
        "text": "4",
        **more,
    }
    return (id_, *given.values())


def test_each_rule_of_a_table_sets_one_record_aside(session: SparkSession, tmp_path: Path) -> None:
    """CHECK that is false, NULL or raises; NOT NULL, also within a struct; lengths within types; a generated value; `columns`."""
    kind = Append(columns={"v": "if(text = 'x', v, 8 div cast(text AS BIGINT))"})
    checks = {"positive": "v > 0", "ordered": "low < v", "sized": "size > 0", "divides": "8 div (low + 5) < 100"}
    b = lake(session, tmp_path, TABLE, checks, stream("In", kind, on_bad_record=KEPT))
    rows = [
        (record(1), None),
        (record(2, text="-1", low=-100), "violates the constraint positive"),
        (record(3, v=None, text="x"), "violates the constraint"),
        (record(None), "id is NULL"),
        (record(4, word="long"), "word is not varchar(3)"),
        (record(5, words=["abc", "long"]), "words is not array<varchar(3)>"),
        (record(6, part=(1, "bbb")), "part is not"),
        (record(7, part=(None, "b")), "part.a is NULL"),
        (record(8, twice=3), "twice is not its generated value"),
        (record(9, text="0"), "cannot be computed: v"),
        (record(10, text="y"), "cannot be computed: v"),
        (record(11, low=9), "violates the constraint ordered"),
        (record(12, word=None, words=None), None),
        (record(13, low=-5), "violates the constraint divides"),
    ]
    result = b.run("In", [row for row, _ in rows], RECORD, 0)
    assert b.rows("id", "v", "twice", "size") == [(1, 2, 2, 1), (12, 2, 24, 1)]
    found = letters(b, "In")
    wanted = {f"file0#{i}": reason for i, (_, reason) in enumerate(rows) if reason is not None}
    assert found.keys() == wanted.keys()
    assert [(place, found[place]) for place, reason in wanted.items() if reason not in found[place]] == []
    assert (result.rows_written, result.dead_letters) == (2, len(wanted))


@pytest.mark.matrix
def test_a_record_that_lacks_columns_is_tested_as_it_is_written(session: SparkSession, tmp_path: Path) -> None:
    """A CHECK on generated columns, defaults and columns without a value, as Delta fills them."""
    checks = {"even": "twice > 2", "sized": "size = 1", "unsaid": "v IS NULL OR v > 0"}
    b = lake(session, tmp_path, TABLE, checks, stream("In", Append(), on_bad_record=KEPT))
    part = {"part": (1, "b")}
    b.run("In", [(1, part["part"]), (2, part["part"])], "id bigint, part struct<a: int, b: string>", 0)
    assert b.rows("id", "twice", "size") == [(2, 4, 1)]
    assert letters(b, "In") == {"file0#0": "violates the constraint even"}


@pytest.mark.matrix
def test_a_policy_that_stops_names_the_rule(session: SparkSession, tmp_path: Path) -> None:
    """The exit code is that of a wrong input, and the message has the rule, the place, and no value."""
    mut = mutate(match={"id": "id"}, set_={"v": "v"}, applies_to="arrived")
    streams = (stream("In", Append()), stream("Mut", mut))
    b = lake(session, tmp_path, "id BIGINT, v BIGINT, low BIGINT", {"ordered": "low < v", "small": "v < 100"}, *streams)
    with pytest.raises(InvalidRequest, match=r"violates the constraint ordered.*file0#1") as told:
        b.run("In", [(1, 5, 0), (2, None, 77)], "id bigint, v bigint, low bigint", 0)
    assert (told.value.exit_code, "77" in str(told.value)) == (2, False)
    b.run("In", [(1, 5, 0), (2, 5, 3)], "id bigint, v bigint, low bigint", 1)
    with pytest.raises(InvalidRequest, match=r"violates the constraint small.*file0#0"):
        b.run("Mut", [(1, 100)], "id bigint, v bigint", 0)
    with pytest.raises(InvalidRequest, match="request of Mut violates the constraint ordered; it is stored"):
        b.run("Mut", [(1, 9), (2, 2)], "id bigint, v bigint", 0)
    assert b.rows("id", "v") == [(1, 5), (2, 5)]


@pytest.mark.matrix
def test_a_request_that_a_row_refuses_is_set_aside_and_the_others_apply(session: SparkSession, tmp_path: Path) -> None:
    """By its own values, by a column of the row that it meets, by a generated value; a key goes on with the request before it."""
    columns = "id BIGINT, v BIGINT, low BIGINT, share BIGINT GENERATED ALWAYS AS (12 div v)"
    mut = mutate(match={"id": "id"}, set_={"v": "v"}, applies_to="arrived")
    streams = (stream("In", Append()), stream("Mut", mut, on_bad_record=KEPT))
    b = lake(session, tmp_path, columns, {"ordered": "low < v", "small": "v < 100", "shared": "share > -5"}, *streams)
    rows = [(1, 5, 0), (2, 5, 3), (3, 5, -9), (4, 5, 0), (4, 5, 4)]
    b.run("In", rows, "id bigint, v bigint, low bigint", 0)
    asked = [(1, 100), (1, 6), (2, 4), (2, 3), (3, 0), (4, 3), (9, 1), (3, -2)]
    for crash in ("store", "apply", None):
        again = {} if crash is None else {"crash_after": frozenset({crash})}
        if crash is None:
            b.run("Mut", asked, "id bigint, v bigint", 0)
        else:
            with pytest.raises(Crash):
                b.run("Mut", asked, "id bigint, v bigint", 0, **again)
    assert b.rows("id", "v", "share") == [(1, 6, 2), (2, 4, 3), (3, 5, 2), (4, 5, 2), (4, 5, 2)]
    assert letters(b, "Mut") == {"file0#0": "violates the constraint small"}
    found = b.requests("Mut")
    assert found == {
        "file0#1": ("applied", None),
        "file0#2": ("applied", None),
        "file0#3": ("dead", "violates the constraint ordered"),
        "file0#4": ("dead", "does not fit: the generated value of share cannot be computed"),
        "file0#5": ("dead", "violates the constraint ordered"),
        "file0#6": ("waiting", "no row has matched yet"),
        "file0#7": ("dead", "violates the constraint shared"),
    }
    b.run("In", [(9, 5, 4)], "id bigint, v bigint, low bigint", 1)
    b.sweep("Mut", 0)
    assert b.requests("Mut")["file0#6"] == ("dead", "violates the constraint ordered")
    assert (9, 5) in b.rows("id", "v")


@pytest.mark.matrix
def test_a_record_that_a_standing_request_makes_bad_is_set_aside(session: SparkSession, tmp_path: Path) -> None:
    """The record is kept as it came, not as it was changed; other rows stay, and the record is reported."""
    mut = mutate(match={"id": "id"}, set_={"v": "v"})
    streams = (stream("In", Append(), on_bad_record=KEPT), stream("Mut", mut, on_bad_record=KEPT))
    b = lake(session, tmp_path, "id BIGINT, v BIGINT, low BIGINT", {"ordered": "low < v"}, *streams)
    b.run("Mut", [(1, 2), (2, 20)], "id bigint, v bigint", 0)
    b.run("In", [(1, 5, 0), (1, 5, 3), (2, 5, 3)], "id bigint, v bigint, low bigint", 0)
    assert b.rows("id", "v", "low") == [(1, 2, 0), (2, 20, 3)]
    assert letters(b, "In") == {"file0#1": "violates the constraint ordered"}
    (kept,) = session.read.format("delta").load(f"{b.root}/_lakegate/dead_letters/In").collect()
    assert kept.raw == '{"id":1,"v":5,"low":3}'
    session.sql(f"INSERT INTO delta.`{b.target}` VALUES (1, 9, 7), (2, 9, 7)")
    b.sweep("Mut", 0)
    assert b.rows("id", "v", "low") == [(1, 2, 0), (1, 9, 7), (2, 20, 3), (2, 20, 7)]
    assert any("stay as others wrote them" in e.text for e in b.gathered.events if isinstance(e, Noticed))


@pytest.mark.matrix
def test_a_function_that_raises_for_one_record_loses_that_record_alone(session: SparkSession, tmp_path: Path) -> None:
    """A function of the user with a UDF, and UDFs in expressions; before its turn or in it; one that raises for all stops.

    No UDF sees a record that did not parse.
    """

    def inverse(text: str) -> int:
        return 12 // int(text)

    session.udf.register("lg_test_inverse", inverse, "bigint")

    def transform(batch: DataFrame) -> DataFrame:
        return batch.withColumn("v", F.expr("lg_test_inverse(text)"))

    mut = mutate(match={"id": "id"}, set_={"v": "lg_test_inverse(text)"})
    rows = [(1, 3), (9, 1), (9, 6)]
    cases: list[tuple[str, Any, dict[str, Any], list[tuple[int, int]]]] = [
        ("fail", Append(), {"transform": transform}, []),
        (KEPT, Append(), {"transform": transform}, rows),
        (KEPT, Append(columns={"v": "lg_test_inverse(text)"}), {}, rows),
        (KEPT, mut, {"coverage": "publish"}, [(9, 6)]),
        (KEPT, Erase(match={"v": "lg_test_inverse(text) - 5"}, lift_when=None), {}, []),
    ]
    records = [(1, "4"), (2, "0"), (3, "y"), (9, "2")]
    for number, (policy, kind, more, wanted) in enumerate(cases):
        spec = stream("S", kind, on_bad_record=policy, **more)
        b = lake(session, tmp_path / str(number), "id BIGINT, v BIGINT", {}, spec)
        session.sql(f"INSERT INTO delta.`{b.target}` VALUES (9, 1)")

        def run(records: Any, batch: int, b: Bench = b, spec: Any = spec) -> None:
            work = StreamWork(spec, b.table, b.context(), coordinator_id="c", coordinator=None)
            work._is_governed = True  # nobody else is here
            frame = b.batch(records, "id bigint, text string", batch)
            work.stage(frame, batch, before=())
            work.run_batch(b.turn("S", batch), frame, batch)

        if policy == "fail":
            with pytest.raises(InvalidRequest, match=r"cannot be computed.*file0#"):
                run(records, 0)
            assert b.rows("id") == [(9,)]
            continue
        run([*records, ("!", "no record")], 0)
        assert b.rows("id", "v") == wanted
        found = session.read.format("delta").load(f"{b.root}/_lakegate/dead_letters/S").collect()
        assert {row.raw for row in found} == {"no record", '{"id":2,"text":"0"}', '{"id":3,"text":"y"}'}
        assert len(found) == 3
        with pytest.raises(JVM_ERRORS):
            run([(4, "0"), (5, "0")], 1)


AFTER_A_TRY = """
from pyspark.logger import PySparkLogger
from lakegate.streams.table_rules import _can_select

class Frame:
    def select(self, value):
        raise ValueError

try:
    _can_select(Frame(), None)
except ValueError:
    PySparkLogger.getLogger("SQLQueryContextLogger").exception("said", errorClass="X")
"""


def test_an_error_of_spark_after_rules_were_tried_is_still_that_error() -> None:
    """PySpark logs each of its errors, by a logger that is made at the first call: here in a process of its own."""
    done = subprocess.run([sys.executable, "-c", AFTER_A_TRY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "said" in done.stderr
