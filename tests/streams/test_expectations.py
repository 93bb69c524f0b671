"""Expectations on records: what does not meet them stops the stream, is dropped, or is set aside; each record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakegate.config import Append, Erase, FilesSource
from lakegate.config.streams import Expectation
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.streams.append import AppendStream
from lakegate.streams.dead_letters import StreamLetters
from lakegate.streams.expectations import with_unmet
from lakegate.streams.pipeline_stream import StreamWork
from lakegate.telemetry.events import BatchWritten
from lakegate.turns.protocol.fencing import unpack
from tests.stream_bench import Bench, Crash, mutate, stream, table

RECORD = "id string, amount int, text string"
COLUMNS = "id STRING, amount INT, text STRING"


def expect(**given: tuple[str, str]) -> dict[str, Expectation]:
    """Name → (condition, treatment)."""
    return {name: Expectation(where=where, otherwise=otherwise) for name, (where, otherwise) in given.items()}  # type: ignore[arg-type]


def lake(session: SparkSession, root: Path, kind: Any, **more: Any) -> Bench:
    """A table with rows `a`, `b` and `c`, and a stream S on it."""
    b = Bench(session, str(root), (stream("S", kind, **more),), table(COLUMNS))
    session.sql(f"CREATE TABLE delta.`{b.target}` ({COLUMNS}) USING delta")
    session.sql(f"INSERT INTO delta.`{b.target}` VALUES ('a', 1, ''), ('b', 1, ''), ('c', 1, '')")
    return b


def letters(b: Bench) -> list[tuple[str, str, str]]:
    """Position, reason and text of each dead letter."""
    location = TableLocation(f"{b.root}/_lakegate/dead_letters/S")
    if b.log.head(location) < 0:
        return []
    return sorted(
        (row.position, row.reason, row.raw) for row in b.session.read.format("delta").load(location).collect()
    )


MANY = expect(
    positive=("amount > 0", "dead_letter"), known=("id IS NOT NULL", "drop"), number=("cast(text AS INT) < 9", "drop")
)
ROWS = [("1", 5, "1"), ("2", -5, "1"), (None, 5, "1"), ("4", None, "x"), (None, -1, "1"), ("6", 6, None), ("!", "{")]


def test_each_record_that_does_not_meet_an_expectation_is_dropped_or_set_aside_once(
    session: SparkSession, tmp_path: Path
) -> None:
    """False, NULL and what raises do not meet it; all of its expectations are counted; a replay writes nothing twice."""
    b = lake(session, tmp_path, Append(columns={"amount": "amount * 2"}), expect=MANY, on_bad_record="dead_letter")
    for step in ("dead_letters", "append"):
        with pytest.raises(Crash):
            b.run("S", ROWS, RECORD, 0, crash_after=frozenset({step}))
    again = b.run("S", ROWS, RECORD, 0)
    assert again.was_applied_before
    assert b.rows("id", "amount")[:1] == [("1", 10)]
    assert len(b.rows("id")) == 4
    assert letters(b) == [
        ("file0#1", "does not meet positive", '{"id":"2","amount":-5,"text":"1"}'),
        ("file0#3", "does not meet positive, number", '{"id":"4","text":"x"}'),
        ("file0#4", "does not meet positive, known", '{"amount":-1,"text":"1"}'),
        ("file0#6", "is not a JSON record of the stated schema", "{"),
    ]
    result = b.run("S", ROWS, RECORD, 1)
    assert (result.rows_written, result.dead_letters) == (1, 4)
    assert result.unmet == {"positive": 3, "known": 2, "number": 2}


def test_a_batch_that_comes_again_is_not_counted_again(session: SparkSession, tmp_path: Path) -> None:
    """Neither in the turn's line of the ledger nor in an event, where the commit log of the first run was lost."""
    b = lake(session, tmp_path, Append(), expect=expect(positive=("amount > 0", "drop")))
    work = StreamWork(b.streams[0], b.table, b.context(), coordinator_id="c", coordinator=None)
    work._is_governed = True  # nobody else is here
    turns = [b.turn("S", 0), b.turn("S", 0)]
    for turn in turns:
        work.run_batch(turn, b.batch([("1", 5, ""), ("2", -5, "")], RECORD, 0), 0)  # type: ignore[arg-type]
    assert [turn.unmet for turn in turns] == [{"positive": 1}, {}]
    assert [one.unmet for one in b.gathered.events if isinstance(one, BatchWritten)] == [{"positive": 1}]


@pytest.mark.every_case
@pytest.mark.parametrize("others", ["fail", "dead_letter"])
def test_an_expectation_that_stops_names_itself_and_the_count_and_no_value(
    session: SparkSession, tmp_path: Path, others: str
) -> None:
    """Nothing of the batch is written, neither rows nor dead letters; also where other records may be set aside."""
    given = expect(positive=("amount > 0", "fail"), known=("id IS NOT NULL", others))
    b = lake(session, tmp_path, Append(), expect=given)
    rows = [("1", 5, ""), ("2", -777, ""), ("3", None, ""), (None, 5, "")]
    told = "positive \\(2\\), known \\(1\\);" if others == "fail" else "positive \\(2\\);"
    with pytest.raises(InvalidRequest, match=f"records of S do not meet an expectation: {told}.*file0#1") as stopped:
        b.run("S", rows, RECORD, 0)
    assert (stopped.value.exit_code, "777" in str(stopped.value)) == (2, False)
    assert (len(b.rows("id")), letters(b)) == (3, [])
    assert b.run("S", [("1", 5, "")], RECORD, 0).rows_written == 1


def test_a_request_that_is_dropped_leaves_the_order_of_the_others(session: SparkSession, tmp_path: Path) -> None:
    """The last request of a key that is as expected wins; what is set aside may be the first, the last, or one between."""
    kind = mutate(match={"id": "id"}, set_={"amount": "amount"}, applies_to="arrived")
    given = expect(positive=("amount > 0", "drop"), named=("text <> 'x'", "dead_letter"))
    b = lake(session, tmp_path, kind, expect=given)
    asked = [("a", -1, ""), ("a", 2, ""), ("b", 3, ""), ("a", 4, "x"), ("a", 5, ""), ("b", -6, ""), ("b", 7, "x")]
    for step in ("dead_letters", "store", "apply"):
        with pytest.raises(Crash):
            b.run("S", asked, RECORD, 0, crash_after=frozenset({step}))
    b.run("S", asked, RECORD, 0)
    assert b.rows("id", "amount") == [("a", 5), ("b", 3), ("c", 1)]
    assert [position for position, _, _ in letters(b)] == ["file0#3", "file0#6"]
    assert set(b.states("S")) == {"file0#1", "file0#2", "file0#4"}
    result = b.run("S", [("c", -1, "x"), ("c", -2, "")], RECORD, 1)
    assert (result.unmet, result.dead_letters, result.was_applied_before) == ({"positive": 2, "named": 1}, 1, False)
    # A batch without a request is in the request table, too: else the next run takes the table for an old copy.
    (number,) = b.log.read_tokens(TableLocation(f"{b.root}/_lakegate/requests/S")).tokens.values()
    assert unpack(number).batch == 1
    assert b.run("S", [("c", -1, "x"), ("c", -2, "")], RECORD, 1).was_applied_before


@pytest.mark.slow
def test_an_erasure_that_is_not_as_expected_erases_nothing(session: SparkSession, tmp_path: Path) -> None:
    b = lake(
        session, tmp_path, Erase(match={"id": "id"}, lift_when=None), expect=expect(asked=("text = 'gdpr'", "drop"))
    )
    result = b.run("S", [("a", 0, "gdpr"), ("b", 0, "test"), ("c", 0, None)], RECORD, 0)
    assert (b.rows("id"), result.unmet) == ([("b",), ("c",)], {"asked": 2})


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("kind", [Append(), mutate(match={"id": "id"}, set_={"amount": "amount"})])
def test_a_batch_that_is_computed_before_its_turn_is_tested_too(
    session: SparkSession, tmp_path: Path, kind: Any
) -> None:
    b = lake(session, tmp_path, kind, expect=MANY, coverage="publish")
    rows, wanted = ROWS[:6], {"positive": 3, "known": 2, "number": 2}
    for batch in range(2):
        work, frame = b.stream("S"), b.batch(rows, RECORD, batch)
        work.stage(frame, batch, before=())
        result = work.run_batch(b.turn("S", batch), frame, batch)
        assert (result.unmet, result.dead_letters) == (wanted, 3)


def test_sql_that_might_decide_otherwise_in_a_replay_is_refused(session: SparkSession) -> None:
    """Also what is no condition, and what cannot be resolved; all at once, each by its name."""
    wrong = {
        "random": ("amount > rand()", "it is not deterministic"),
        "now": ("amount < year(current_date())", "it depends on the current time or user"),
        "nested": ("amount IN (SELECT 1)", "it has a sub-query"),
        "total": ("sum(amount) > 0", "contains invalid expressions: sum"),
        "number": ("amount + 1", "is not a boolean"),
        "lost": ("missing > 0", "missing"),
    }
    spec = stream("S", Append(), expect=expect(**{name: (where, "drop") for name, (where, _) in wrong.items()}))
    records = session.createDataFrame([], f"{RECORD}, _lg_bad string")
    with pytest.raises(InvalidRequest) as refused:
        with_unmet(spec, records)
    told = {fault.where: fault.what for fault in refused.value.faults}
    assert told.keys() == {f"streams.S.expect.{name}.where" for name in wrong}
    assert [
        told[f"streams.S.expect.{name}.where"]
        for name, (_, what) in wrong.items()
        if what not in told[f"streams.S.expect.{name}.where"]
    ] == []


@pytest.mark.slow
def test_a_record_is_sent_again_with_the_columns_of_the_function(session: SparkSession, tmp_path: Path) -> None:
    """A column that the function of the stream adds, and the source lacks, can be corrected and is written."""
    more: dict[str, Any] = {"expect": expect(small=("amount < 5", "dead_letter")), "on_bad_record": "dead_letter"}
    (tmp_path / "in").mkdir()
    source = FilesSource(path=str(tmp_path / "in"), format="json", schema="id STRING")

    def transform(batch: DataFrame) -> DataFrame:
        return batch.withColumns({"amount": F.length("id"), "text": F.upper("id")})

    b = lake(session, tmp_path / "lake", Append(), transform=transform, source=source, **more)
    b.run("S", [("x",), ("too long",)], "id string", 0)
    assert letters(b) == [("file0#1", "does not meet small", '{"id":"too long","amount":8,"text":"TOO LONG"}')]
    kept, again = StreamLetters(b.context(), b.streams[0]), stream("S", Append(), source=source, **more)
    ((id_,),) = ((row.id,) for row in kept.rows(rows_max=9, has_values=False))
    turn = b.turn("again", 0)
    assert kept.mark(turn, [id_], {"amount": "3"}, 0) == 1
    assert kept.send(turn, 0, AppendStream(again, b.table, b.context()).run_batch).count == 1
    assert [row for row in b.rows("id", "amount", "text") if row[0] == "too long"] == [("too long", 3, "TOO LONG")]
    assert letters(b) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [Append(), mutate(match={"id": "id"}, set_={"amount": "amount"}, applies_to="arrived")]
)
def test_what_an_expectation_costs_in_spark_jobs(session: SparkSession, tmp_path: Path, kind: Any) -> None:
    """None, if it stops the stream; if it drops records or sets them aside, the one job of `on_bad_record: dead_letter`."""
    cases: dict[str, dict[str, Any]] = {
        "none": {},
        "fail": {"expect": expect(positive=("amount > 0", "fail"))},
        "drop": {"expect": expect(positive=("amount > 0", "drop"))},
        "letters": {"on_bad_record": "dead_letter"},
    }
    jobs, context = {}, session.sparkContext
    for name, more in cases.items():
        b = lake(session, tmp_path / name, kind, **more)
        b.run("S", [("a", 5, "")], RECORD, 0)
        work, frame = b.stream("S"), b.batch([("a", 5, ""), ("b", 6, "")], RECORD, 1)
        before = set(context.statusTracker().getJobIdsForGroup(None))
        work.run_batch(b.turn("S", 1), frame, 1)
        jobs[name] = len(set(context.statusTracker().getJobIdsForGroup(None)) - before)
    assert 0 < jobs["none"] == jobs["fail"] < jobs["drop"] == jobs["letters"] == jobs["none"] + 1, jobs
