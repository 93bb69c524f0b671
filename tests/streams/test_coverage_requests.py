"""Coverage `publish` of streams of requests: decided and computed before the turn, and made to follow what others commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakegate
from lakegate.config import Erase
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.rows.execution import Execution
from lakegate.streams.pipeline_stream import StreamWork
from lakegate.streams.requests.apply import TargetRows
from lakegate.streams.requests.resolver import RequestReader
from lakegate.telemetry.events import StatementPublished
from tests.delta.delta_tables import commit_paths
from tests.stream_bench import Crash, stream, table
from tests.streams.staged_batches import ERASURE, OTHERS, ahead, files_of, last_lines, noting, staged
from tests.streams.three_streams import COLUMNS, RECORD, REQUEST, bench, foreign, persons, records, requests

pytestmark = pytest.mark.slow

KEEPS_UP = pytest.mark.parametrize("keeps_up", [True, False], ids=["before its turn", "in its turn"])


@pytest.mark.matrix
@KEEPS_UP
def test_requests_meet_what_came_after_they_were_computed(
    session: SparkSession, tmp_path: Path, *, keeps_up: bool
) -> None:
    """The computed result is put, not thrown away; it includes the new rows, and its counts include them."""
    b = bench(session, tmp_path)
    b.table = table(COLUMNS, properties={"delta.enableDeletionVectors": "true"})
    b.run("In", records("1:a", "2:b", "3:c"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    put = ahead(b, "Mut", 1, "a>p", "c>q", "y>w", keeps_up=keeps_up)  # nobody is y yet
    computed = files_of(b)
    foreign(b, ("9", "a", "a"), ("8", "y", "y"), ("7", "u", "u"))
    result = put()
    assert (result.rows_in, result.rows_written, result.requests_matched) == (3, 4, 3)
    assert persons(b) == {"1": "p", "2": "b", "3": "q", "7": "u", "8": "w", "9": "p"}
    assert {row.source_position: row.matched_rows for row in b.request_rows("Mut") if row.batch == 1} == {
        "file1#0": 2,
        "file1#1": 1,
        "file1#2": 1,
    }
    named = {json.loads(line)["add"]["path"] for line in last_lines(b) if '"add"' in line}
    assert named & computed, "files that were written before the turn are part of its commit"


@pytest.mark.matrix
@KEEPS_UP
def test_requests_that_met_nothing_meet_what_came(session: SparkSession, tmp_path: Path, *, keeps_up: bool) -> None:
    """Nothing was to be changed when they were computed."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    nothing = ahead(b, "Mut", 1, "y>y", keeps_up=keeps_up)
    assert nothing().requests_matched == 0
    put = ahead(b, "Mut", 2, "c>q", keeps_up=keeps_up)
    foreign(b, ("9", "c", "c"))
    assert put().requests_matched == 1
    assert persons(b) == {"1": "a", "9": "q"}


@pytest.mark.matrix
@KEEPS_UP
@pytest.mark.parametrize(
    ("before", "meanwhile", "left"),
    [(("nobody", "erase"), ("p", "erase"), {"2": "q"}), (("p", "erase"), ("p", "lift"), {"1": "p", "2": "q"})],
    ids=["erased", "lifted"],
)
def test_a_person_who_was_erased_or_lifted_meanwhile_is_so_for_the_batch(
    session: SparkSession,
    tmp_path: Path,
    before: tuple[str, str],
    meanwhile: tuple[str, str],
    left: dict[str, str],
    *,
    keeps_up: bool,
) -> None:
    """A request that leads to the person moves its row or deletes it, by what stands at the time of its turn."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [before], ERASURE, 0)
    put = ahead(b, "Mut", 1, "a>p", "b>q", keeps_up=keeps_up)
    b.run("TTL", [meanwhile], ERASURE, 1)
    put()
    assert persons(b) == left


@pytest.mark.matrix
@KEEPS_UP
def test_persons_are_erased_from_rows_that_changed_meanwhile(
    session: SparkSession, tmp_path: Path, *, keeps_up: bool
) -> None:
    """A row became the person's, and another was the person's no more."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:p", "3:c"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    put = ahead(b, "TTL", 1, "p", keeps_up=keeps_up)
    b.run("Mut", requests("a>p", "p>q"), REQUEST, 1)
    assert put().rows_written == 1
    assert persons(b) == {"2": "q", "3": "c"}


@pytest.mark.matrix
def test_only_what_others_may_have_changed_is_decided_again(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erasures and lifts of persons that no request of the batch leads to do not change it, nor do requests of others."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b", "3:p"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase"), ("z", "erase")], ERASURE, 0)
    mutations = ahead(b, "Mut", 1, "a>p", "b>q", "b>r")
    b.run("TTL", [("x", "erase"), ("nobody", "lift")], ERASURE, 1)
    erasures = ahead(b, "TTL", 2, "q")
    reads: list[int] = []
    read = RequestReader.read
    monkeypatch.setattr(RequestReader, "read", lambda *given: reads.append(1) or read(*given))
    assert mutations().requests_matched == 3
    assert erasures().rows_written == 0
    assert reads == []
    assert persons(b) == {"1": "p", "2": "r", "3": "p"}
    assert sorted(b.states("Mut").values()) == ["applied", "applied", "applied", "superseded"]


@pytest.mark.matrix
@pytest.mark.parametrize("step", ["apply", "settle"])
def test_erasures_that_an_erase_stream_stores_are_treated_as_active(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It has the turn, and mutations are decided with it meanwhile: in their own turn nothing is, if just that was settled."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b", "3:c"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    for batch, (erased, left) in enumerate([("p", {"2": "b", "3": "c"}), ("q", {"3": "c"})], 1):
        kind, frame = b.stream("Mut"), b.batch(requests("a>p" if batch == 1 else "b>q", "c>c"), REQUEST, batch)
        if step == "settle":
            kind.stage(frame, batch, before=())

        def look(name: str, kind: Any = kind, frame: DataFrame = frame, batch: int = batch) -> None:
            if name == "apply" and step == "apply":
                kind.stage(frame, batch, before=OTHERS)
            if name == step:
                kind.keep_up(before=())

        b.run("TTL", [(erased, "erase")], ERASURE, batch, between=look)
        reads: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(RequestReader, "read", noting(reads, RequestReader.read))
            kind.run_batch(b.turn("Mut", batch), frame, batch)
        assert reads == []
        assert persons(b) == left


@pytest.mark.matrix
def test_erasures_that_come_while_a_batch_is_decided_are_not_left_for_later(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of the turn that has begun with it: the change is computed with them, once."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    kind, frame = b.stream("Mut"), b.batch(requests("a>p", "b>q"), REQUEST, 1)
    done: list[str] = []
    monkeypatch.setattr(TargetRows, "stage", noting(done, TargetRows.stage))
    decide = RequestReader.decide

    def erased_meanwhile(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(RequestReader, "decide", decide)
        b.run("TTL", [("p", "erase")], ERASURE, 1)
        return decide(*given, **more)

    monkeypatch.setattr(RequestReader, "decide", erased_meanwhile)
    kind.stage(frame, 1, before=OTHERS)
    monkeypatch.setattr(RequestReader, "read", noting(done, RequestReader.read))
    kind.run_batch(b.turn("Mut", 1), frame, 1)
    assert done == ["stage"]
    assert persons(b) == {"2": "q"}


@pytest.mark.matrix
def test_erasures_that_were_stored_and_not_applied_are_not_active(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their run has ended between two steps: taken to stand the first time, which the turn finds out, and never again."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b", "3:c"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    with pytest.raises(Crash):
        b.run("TTL", [("p", "erase")], ERASURE, 1, crash_before=frozenset({"apply"}))
    kind = b.stream("Mut")
    reads: list[str] = []
    monkeypatch.setattr(RequestReader, "read", noting(reads, RequestReader.read))
    for batch, (request, read) in enumerate([("a>p", 2), ("b>p", 1)], 1):
        frame = b.batch(requests(request), REQUEST, batch)
        kind.stage(frame, batch, before=())
        kind.run_batch(b.turn("Mut", batch), frame, batch)
        assert len(reads) == read
        reads.clear()
    assert persons(b) == {"1": "p", "2": "p", "3": "c"}
    frame = b.batch(requests("c>p"), REQUEST, 3)
    kind.stage(frame, 3, before=())
    with pytest.raises(Crash):
        b.run("TTL", [("p", "erase")], ERASURE, 1, crash_before=frozenset({"settle"}))
    kind.run_batch(b.turn("Mut", 3), frame, 3)
    assert persons(b) == {}


@pytest.mark.matrix
def test_another_batch_than_the_assumed_one_was_settled(session: SparkSession, tmp_path: Path) -> None:
    """A lift came after the erasure that the batch was decided with."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    kind, frame = b.stream("Mut"), b.batch(requests("a>p"), REQUEST, 1)
    kind.stage(frame, 1, before=())
    b.run("TTL", [("p", "erase")], ERASURE, 1, between=lambda step: step == "settle" and kind.keep_up(before=()))
    b.run("TTL", [("p", "lift")], ERASURE, 2)
    kind.run_batch(b.turn("Mut", 1), frame, 1)
    assert persons(b) == {"1": "p"}


@pytest.mark.matrix
@KEEPS_UP
def test_the_first_erasures_came_meanwhile(session: SparkSession, tmp_path: Path, *, keeps_up: bool) -> None:
    """The outcome of a row now depends on another of its columns, which was unknown when it was computed."""
    b = bench(session, tmp_path)
    b.streams = (*b.streams[:2], stream("TTL", Erase(match={"person": "person", "id": "id"}, lift_when=None)))
    b.run("In", records("1:a", "2:a"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    put = ahead(b, "Mut", 1, "a>p", keeps_up=keeps_up)
    b.run("TTL", [("p", "1")], "person string, id string", 0)
    put()
    assert persons(b) == {"2": "p"}


@pytest.mark.matrix
def test_a_change_that_was_rebased_before_the_turn_is_only_put_in_it(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person was erased, and rows came that it concerns: in the turn nothing is executed, and nothing decided."""
    b = bench(session, tmp_path)
    b.table = table(COLUMNS, properties={"delta.enableDeletionVectors": "true"})
    b.run("In", records("1:a", "2:b", "3:c"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    kind, frame = b.stream("Mut"), b.batch(requests("a>p", "b>q"), REQUEST, 1)
    kind.stage(frame, 1, before=())
    known = kind.known()
    b.run("TTL", [("q", "erase")], ERASURE, 1)
    assert kind.known() != known
    foreign(b, ("9", "a", "a"))
    kind.keep_up(before=())
    foreign(b, ("8", "b", "b"))
    head = len(commit_paths(b.target))
    kind.keep_up(before=())
    assert len(commit_paths(b.target)) == head
    done: list[str] = []
    for owner, name in ((Execution, "run"), (Execution, "run_on"), (RequestReader, "read"), (TargetRows, "meet")):
        monkeypatch.setattr(owner, name, noting(done, getattr(owner, name)))
    told: list[StatementPublished] = []
    end = lakegate.on_statement(told.append)
    turn = b.turn("Mut", 1)
    # As a look that begins when the turn has come: nothing follows any more.
    turn.between = lambda step: kind.keep_up(before=())
    result = kind.run_batch(turn, frame, 1)
    end()
    assert done == []
    store = commit_paths(TableLocation(f"{b.root}/_lakegate/requests/Mut"))[-2].read_text()
    assert store.count('{"add":') == 1, "what was stored is one file, whatever the cores"
    assert (result.rows_written, persons(b)) == (4, {"1": "p", "3": "c", "9": "p"})
    assert [(event.level, event.attempts) for event in told if event.operation == "MERGE"] == [(3, 2)]


@pytest.mark.parametrize(
    "step", [pytest.param("store", marks=pytest.mark.matrix), "apply", pytest.param("settle", marks=pytest.mark.matrix)]
)
def test_a_crash_in_the_turn_is_completed_by_the_next_run(session: SparkSession, tmp_path: Path, step: str) -> None:
    """The next run has computed nothing before, or has computed it again: the same table, the same counts."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    put = ahead(b, "Mut", 1, "a>p", "c>q")
    foreign(b, ("9", "a", "a"))
    with pytest.raises(Crash):
        put(crash_after=frozenset({step}))
    ahead(b, "Mut", 1, "a>p", "c>q")()
    assert persons(b) == {"1": "p", "2": "b", "9": "p"}
    assert {row.source_position: row.matched_rows for row in b.request_rows("Mut") if row.batch == 1} == {
        "file1#0": 2,
        "file1#1": 0,
    }
    assert b.states("Mut") == {"file0#0": "applied", "file1#0": "applied", "file1#1": "applied"}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"set_": {"person": "person", "other": "op"}}, {"set_": {"other": "op", "person": "person"}}),
        ({"match": {"id": "alias", "alias": "op"}}, {"match": {"alias": "op", "id": "alias"}}),
        ({"match": {"id": "alias"}}, {"match": {"alias": "alias"}}),
    ],
    ids=["order of set", "order of match", "other column"],
)
def test_requests_of_other_columns_are_refused_before_the_turn_and_in_it(
    session: SparkSession, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """As long as requests are stored for other columns, or for these in another order: nothing of any stream is written."""
    columns = f"{COLUMNS}, other STRING"
    b = bench(session, tmp_path, columns=columns, **before)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    b.run("Mut", requests("b>q"), REQUEST, 0)
    changed = bench(session, tmp_path, columns=columns, **after)
    said = "the requests of Mut were stored for other columns than"
    for name in ("Mut", "In"):
        spec = next(one for one in changed.streams if one.name == name)
        work = StreamWork(spec, changed.table, changed.context(), coordinator_id="c", coordinator=None)
        with pytest.raises(InvalidRequest, match=said):
            work.prepare()  # by the supervisor, before it takes a turn
    for put in (ahead(changed, "Mut", 1, "a>p"), staged(changed, 1, "3:c")):
        with pytest.raises(InvalidRequest, match=said):
            put()
    assert len(b.request_rows("Mut")) == 1
    assert sorted(persons(b)) == ["1", "2"]


@pytest.mark.matrix
@pytest.mark.parametrize("on_bad_record", ["fail", "dead_letter"])
def test_a_bad_record_stops_what_is_computed_before_the_turn(
    session: SparkSession, tmp_path: Path, on_bad_record: str
) -> None:
    """Also for a stream with a function: the error names the record, and nothing stays in memory; or the record is set aside."""
    b = bench(session, tmp_path)
    more = {"transform": lambda batch: batch.withColumn("person", F.upper("person")), "on_bad_record": on_bad_record}
    b.streams = tuple(one.model_copy(update=more) if one.name == "Mut" else one for one in b.streams)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    cached = session._jsparkSession.sharedState().cacheManager()
    before = cached.numCachedEntries()
    kind, frame = b.stream("Mut"), b.batch([*requests("a>p"), ("!", "{broken")], REQUEST, 1)
    if on_bad_record == "fail":
        with pytest.raises(InvalidRequest, match="a record of Mut is not a JSON record") as refused:
            kind.stage(frame, 1, before=())
        assert "position=file1#1" in str(refused.value)
        assert persons(b) == {"1": "a"}
    else:
        kind.stage(frame, 1, before=())
        assert kind.run_batch(b.turn("Mut", 1), frame, 1).dead_letters == 1
        assert persons(b) == {"1": "P"}
    assert cached.numCachedEntries() == before
