"""Coverage `publish`: a batch is computed before its turn and put in it; what does not hold any more is computed anew."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import headgate
from headgate.core.ids import Epoch, TableLocation, TokenId
from headgate.core.rows.statement import Operation
from headgate.core.spec import Append, Erase
from headgate.core.turns.tokens import Token
from headgate.delta.commits import commit_info, commit_tokens
from headgate.delta.gate import Gate
from headgate.delta.line import Afterwards, Work
from headgate.delta.publish import Staged
from headgate.delta.run import Run
from headgate.delta.statements import append as append_rows
from headgate.errors import InvalidRequest
from headgate.events import StatementPublished
from headgate.ports import WriteToken
from headgate.streams import append, job
from headgate.streams.append import AppendStream
from headgate.streams.deciding import StoredBatch, _stored
from headgate.streams.erase import _Kept
from headgate.streams.held import RequestReader
from headgate.streams.keeping_up import LOOK_S, REST_S, keeping_up
from headgate.streams.steps import APPLY, SETTLE, STORE, BatchTurn, enter_all
from headgate.streams.target import TargetRows
from headgate.tables.running import finish, follow, publisher, put
from headgate.tables.sql import statement
from tests.spark.delta_tables import commit_paths, ids, make_table, write_token
from tests.spark.delta_tables import rows as frame
from tests.spark.test_delta_statements import wait_until
from tests.spark.test_streams_mutate import COLUMNS, RECORD, REQUEST, bench, foreign, persons, records, requests
from tests.stream_bench import Bench, Crash, stream, table

ERASURE = "person string, op string"
OTHERS = ("Mut", "TTL")
"""Whose turns come before."""
KEEP = Append(columns={"person": "alias"}, key=("id",), on_duplicate="keep_first")


def files_of(b: Bench) -> set[str]:
    """Data files on disk, also those that no commit names."""
    return {path.name for path in Path(b.target).rglob("*.parquet") if "_delta_log" not in path.parts}


def staged(b: Bench, batch: int, *rows: str) -> Callable[[], object]:
    """A batch of In that is computed now, and put when it is called."""
    kind, frame = b.stream("In"), b.batch(records(*rows), RECORD, batch)
    kind.stage(frame, batch, before=())
    return lambda: kind.run_batch(b.turn("In", batch), frame, batch)


def test_what_others_append_meanwhile_does_not_concern_it(session: SparkSession, tmp_path: Path) -> None:
    """The files that were written before the turn are what the turn commits, with its token, behind the other commit."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    put = staged(b, 1, "2:b", "3:c")
    computed = files_of(b)
    foreign(b, ("9", "z", "z"))
    before = files_of(b)
    result = put()
    assert result.rows_written == 2
    assert persons(b) == {"1": "a", "2": "b", "3": "c", "9": "z"}
    assert files_of(b) == before >= computed
    last = commit_paths(b.target)[-1].read_text()
    assert list(commit_tokens(last)) == ["headgate/In"]
    assert json.loads(commit_info(last)["userMetadata"])["step"] == "append"
    assert staged(b, 1, "2:b", "3:c")().was_applied_before
    assert len(persons(b)) == 4


def test_a_request_that_came_to_stand_meanwhile_is_met(session: SparkSession, tmp_path: Path) -> None:
    """The batch was computed without it, so it is computed anew in its turn."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    put = staged(b, 1, "2:a")
    b.run("Mut", requests("a>p"), REQUEST, 1)
    put()
    assert persons(b) == {"1": "p", "2": "p"}


@pytest.mark.parametrize("on_bad_record", ["fail", "dead_letter"])
def test_what_is_computed_anew_is_not_read_anew(session: SparkSession, tmp_path: Path, on_bad_record: str) -> None:
    """The function of the stream, which may take long or say something else each time, sees each record once."""
    looked_up = session.sparkContext.accumulator(0)

    def look_up(alias: str) -> str:
        looked_up.add(1)
        return alias

    function = F.udf(look_up, "string", useArrow=False).asNondeterministic()
    b = bench(session, tmp_path)
    b.streams = tuple(
        replace(one, on_bad_record=on_bad_record, transform=lambda batch: batch.withColumn("alias", function("alias")))
        if one.name == "In"
        else one
        for one in b.streams
    )
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    before = looked_up.value
    put = staged(b, 1, "2:a", "3:b")
    b.run("Mut", requests("a>p"), REQUEST, 1)
    put()
    assert persons(b) == {"1": "p", "2": "p", "3": "b"}
    assert looked_up.value == before + 2


def test_a_key_that_came_meanwhile_is_not_written_twice(session: SparkSession, tmp_path: Path) -> None:
    """`keep_first` was decided on a table that another has added to."""
    b = Bench(session, str(tmp_path), (stream("In", KEEP),), table(COLUMNS))
    b.run("In", records("1:a"), RECORD, 0)
    put = staged(b, 1, "1:x", "2:b")
    foreign(b, ("2", "z", "z"))
    put()
    assert persons(b) == {"1": "a", "2": "z"}


def test_a_batch_that_a_later_turn_has_written_is_not_put_again(session: SparkSession, tmp_path: Path) -> None:
    """Its token is in the table by the time of the put: between the look at it and the put, too."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    kind, frame = b.stream("In"), b.batch(records("2:b"), RECORD, 1)
    kind.stage(frame, 1, before=())
    late = b.turn("In", 1)
    late.between = lambda name: b.run("In", records("2:b"), RECORD, 1)
    kind.run_batch(late, frame, 1)
    assert persons(b) == {"1": "a", "2": "b"}


def test_a_statement_that_is_executed_again_in_its_turn_carries_the_token_too(
    session: SparkSession, tmp_path: Path
) -> None:
    """Its commit is stamped each time, and put by us each time: once in the table, whatever it took."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    dml = statement(session, f"UPDATE delta.`{b.target}` SET person = concat(person, '!') WHERE id = '1'")
    assert dml is not None
    before = publisher(session).stage(dml)
    session.sql(f"ALTER TABLE delta.`{b.target}` SET TBLPROPERTIES ('some' = 'thing')")
    token = write_token(1, 1, token_id=TokenId("headgate/Own"))
    done = finish(before, token)
    assert (done.level, done.attempts) == (4, 2)
    assert commit_tokens(commit_paths(b.target)[-1].read_text()) == {"headgate/Own": token.number}
    again = publisher(session).stage(dml)
    assert finish(again, token).version is not None, (
        "its number came before it was computed: the turn looks at it first"
    )
    twice = publisher(session).stage(dml)
    later = write_token(2, 1, token_id=TokenId("headgate/Own"))
    finish(publisher(session).stage(dml), later)
    assert finish(twice, token).version is None
    assert persons(b) == {"1": "a!!!", "2": "b"}


def kept_up_in(b: Bench, kind: AppendStream, step: str) -> Callable[[str], None]:
    """A look of an append at what others have committed, before a step of another's turn."""
    return lambda name: kind.keep_up(before=()) if name == step else None


def test_rows_are_ready_when_the_turn_of_requests_ends(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a stream has applied stands, though it is not settled: rows are computed with it, and only put in their own turn."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    for batch, (request, erased) in enumerate([("a>p", "p"), ("c>q", "d")], 1):
        kind, frame = b.stream("In"), b.batch(records(f"{batch}2:a", f"{batch}3:d", f"{batch}4:c"), RECORD, batch)
        kind.stage(frame, batch, before=())
        known = kind.known()
        b.run("Mut", requests(request), REQUEST, batch)
        assert kind.known() != known
        b.run("TTL", [(erased, "erase")], ERASURE, batch, between=kept_up_in(b, kind, "settle"))
        done: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(AppendStream, "_met", noting(done, AppendStream._met))
            assert kind.run_batch(b.turn("In", batch), frame, batch).rows_written == (2 if batch == 1 else 1)
        assert done == []
    assert persons(b) == {"14": "q", "24": "q"}


def test_rows_of_a_batch_that_is_not_next_are_only_read(session: SparkSession, tmp_path: Path) -> None:
    """Who has the turn may make requests stand: files are written when it has settled them, and the next turn is that of the
    rows."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    kind, frame = b.stream("In"), b.batch(records("2:a"), RECORD, 1)
    kind.stage(frame, 1, before=OTHERS)
    computed: list[str] = []

    def look(step: str) -> None:
        for before in (OTHERS, ["Mut"]):
            kind.keep_up(before=before)
            computed.extend([step] if kind._ahead.computed is not None else [])

    b.run("Mut", requests("a>p"), REQUEST, 1, between=look)
    assert computed == []
    look("settled")
    assert computed == ["settled"], "TTL has not had its turn"
    files = files_of(b)
    kind.run_batch(b.turn("In", 1), frame, 1)
    assert files_of(b) == files
    assert persons(b) == {"1": "p", "2": "p"}


def test_requests_that_were_stored_and_not_applied_do_not_stand(session: SparkSession, tmp_path: Path) -> None:
    """Their run has ended between two steps."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    kind = b.stream("In")
    with pytest.raises(Crash):
        b.run("Mut", requests("a>p"), REQUEST, 1, crash_before=frozenset({"apply"}))
    frame = b.batch(records("2:a"), RECORD, 1)
    kind.stage(frame, 1, before=())
    kind.run_batch(b.turn("In", 1), frame, 1)
    assert persons(b) == {"1": "a", "2": "a"}
    b.run("Mut", requests("a>p"), REQUEST, 1)
    assert persons(b) == {"1": "p", "2": "p"}


def test_what_was_settled_otherwise_than_it_was_taken_to_be_is_met(session: SparkSession, tmp_path: Path) -> None:
    """More came to stand than what was stored when the rows were computed."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    kind, frame = b.stream("In"), b.batch(records("2:a", "3:c", "4:d"), RECORD, 1)
    kind.stage(frame, 1, before=())
    b.run("TTL", [("nobody", "erase")], ERASURE, 0)
    b.run("TTL", [("a", "erase")], ERASURE, 1, between=kept_up_in(b, kind, "settle"))
    b.run("TTL", [("c", "erase")], ERASURE, 2)
    kind.run_batch(b.turn("In", 1), frame, 1)
    assert persons(b) == {"4": "d"}


def test_requests_that_are_settled_while_they_are_read_are_not_missed(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands was read before the settle, and what is stored after it: what comes of that is not put."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    kind, frame = b.stream("In"), b.batch(records("2:a"), RECORD, 1)
    with pytest.raises(Crash):
        b.run("Mut", requests("a>p"), REQUEST, 1, crash_before=frozenset({"settle"}))
    real = append.later_rules

    def settled_before(*given: Any) -> Any:
        monkeypatch.setattr(append, "later_rules", real)
        b.run("Mut", requests("a>p"), REQUEST, 1)
        return real(*given)

    monkeypatch.setattr(append, "later_rules", settled_before)
    kind.stage(frame, 1, before=())
    kind.run_batch(b.turn("In", 1), frame, 1)
    assert persons(b) == {"1": "p", "2": "p"}


def test_what_others_have_changed_is_computed_anew_when_they_rest(session: SparkSession, tmp_path: Path) -> None:
    """While the next turn is another's, files are not written for what that may change again; unless it takes its time."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    kind, frame = b.stream("In"), b.batch(records("2:a"), RECORD, 1)
    kind.stage(frame, 1, before=())
    b.run("Mut", requests("a>p"), REQUEST, 1)
    files = files_of(b)
    for waited_s in (0, REST_S - 1, 0.9):
        b.clock.now_ms += int(waited_s * 1000)
        kind.keep_up(before=OTHERS)
        assert files_of(b) == files
    b.clock.now_ms += 200
    kind.keep_up(before=OTHERS)
    computed = files_of(b)
    assert computed > files
    kind.keep_up(before=OTHERS)
    kind.run_batch(b.turn("In", 1), frame, 1)
    assert files_of(b) == computed
    assert persons(b) == {"1": "p", "2": "p"}


def test_of_several_batches_that_are_stored_the_one_that_stands_counts() -> None:
    """A checkpoint was lost: the query before it has left a batch, and the one after it has applied one and not settled it."""
    old, new = TokenId("headgate/old"), TokenId("headgate/new")
    left, stored = Token(epoch=Epoch(1), batch=9, step=STORE).pack(), Token(epoch=Epoch(2), batch=0, step=STORE).pack()
    applied = {new: Token(epoch=Epoch(2), batch=0, step=APPLY).pack()}
    assert _stored({old: left, new: stored}, applied) == StoredBatch(0, stands=True)
    assert _stored({old: left, new: stored}, {}) == StoredBatch(9, stands=False)
    settled = Token(epoch=Epoch(2), batch=0, step=SETTLE).pack()
    assert _stored({new: settled}, applied) is None


def test_tables_are_entered_at_the_same_time_and_as_the_job(session: SparkSession, tmp_path: Path) -> None:
    """Each entry waits for the others here, and commits to a table that this JVM lets only the job write."""
    tables = [make_table(session, tmp_path / f"t{i}") for i in range(3)]
    gate, all_there = Gate(session), threading.Barrier(3, timeout=60)

    class Entering:
        def enter(self, location: TableLocation) -> bool:
            all_there.wait()
            frame(session, 1).write.format("delta").mode("append").save(location)
            return True

    for location in tables:
        gate.govern(location)
        assert gate.grant(location, "A", 1, 600_000)
    try:
        with gate.acting("A"):
            enter_all(cast("BatchTurn", Entering()), tables, session, "A")
        assert [ids(session, location) for location in tables] == [[1], [1], [1]]
        with pytest.raises(Exception, match="turn"), gate.acting("B"):
            frame(session, 2).write.format("delta").mode("append").save(tables[0])
    finally:
        for location in tables:
            gate.revoke(location, 1)
            gate.release(location)


def test_what_is_computed_and_put_in_a_turn_is_fenced_like_a_stock_write(session: SparkSession, tmp_path: Path) -> None:
    """A successor's number is in the table before it is executed, or comes while it is: nothing is written, or twice."""
    location = make_table(session, tmp_path / "t")
    own, later = write_token(1, 1), write_token(2, 1)

    def insert(id_: int) -> None:
        put(session, location, Operation.INSERT, lambda: append_rows(frame(session, id_), location, own), own)

    insert(1)
    insert(2)
    assert ids(session, location) == [1]

    made = Run.stamped

    def stamped(*given: Any) -> Any:
        """Executed, and not put yet."""
        append_rows(frame(session, 3), location, later)
        return made(*given)

    own = write_token(1, 2)
    with patch.object(Run, "stamped", stamped):
        insert(4)
    insert(5)
    assert ids(session, location) == [1, 3]


# ------------------------------------------------------------------------------------------------------------ requests


def test_others_requests_are_looked_through_where_any_may_be_kept(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log tells where an erase stream need not ask Spark; one that has begun to wait since goes with its person."""
    b = bench(session, tmp_path, applies_to="arrived")
    b.run("In", records("1:p"), RECORD, 0)
    b.run("Mut", requests("p>q"), REQUEST, 0)
    asked: list[str] = []
    monkeypatch.setattr(_Kept, "is_empty", noting(asked, _Kept.is_empty))
    kind = b.stream("TTL")
    for batch, (person, mutation, times) in enumerate([("x", "1", 0), ("y", "2", 0), ("z", "z>z", 1), ("u", "3", 2)]):
        frame = b.batch([(person, "erase")], ERASURE, batch)
        kind.stage(frame, batch, before=())
        if ">" in mutation:
            b.run("Mut", requests("u>u", mutation), REQUEST, batch)
        kind.run_batch(b.turn("TTL", batch), frame, batch)
        assert len(asked) == times
    assert b.states("Mut") == {"file0#0": "applied"}


def test_a_checkpoint_of_requests_is_not_waited_for(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Delta does after a commit is left for when nobody waits, with batches computed before their turns or in them."""
    later: list[Work] = []
    monkeypatch.setattr(Afterwards, "__call__", lambda self, work: later.append(work))
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    session.conf.set("spark.databricks.delta.properties.defaults.checkpointInterval", "1")
    try:
        b.run("Mut", requests("x>y"), REQUEST, 0)
        ahead(b, "Mut", 1, "a>p")()
    finally:
        session.conf.unset("spark.databricks.delta.properties.defaults.checkpointInterval")
    log = Path(b.root) / "_headgate/requests/Mut/_delta_log"
    assert not list(log.glob("0*.checkpoint*"))
    for checkpoint in [more for work in later if (more := work()) is not None]:
        checkpoint()
    assert [int(path.name.split(".")[0]) for path in sorted(log.glob("0*.checkpoint*"))] == [1, 2, 3, 4]
    assert persons(b) == {"1": "p"}


def ahead(b: Bench, name: str, batch: int, *said: str, keeps_up: bool = False) -> Callable[..., Any]:
    """A batch of Mut or TTL that is computed now, and put when it is called; it may follow others just before."""
    rows, schema = (requests(*said), REQUEST) if name == "Mut" else ([(one, "erase") for one in said], ERASURE)
    kind, frame = b.stream(name), b.batch(rows, schema, batch)
    kind.stage(frame, batch, before=())

    def put(**more: Any) -> object:
        if keeps_up:
            kind.keep_up(before=())
        return kind.run_batch(b.turn(name, batch, **more), frame, batch)

    return put


KEEPS_UP = pytest.mark.parametrize("keeps_up", [False, True], ids=["in its turn", "before its turn"])


@KEEPS_UP
def test_requests_meet_what_came_after_they_were_computed(
    session: SparkSession, tmp_path: Path, *, keeps_up: bool
) -> None:
    """What was computed is put, not thrown away; it concerns the new rows, too, and what it met is counted with them."""
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


def test_only_what_others_may_have_changed_is_decided_again(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erasures and lifts of persons whom no request of the batch leads to leave it as it was, and so do requests of others."""
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


@pytest.mark.parametrize("step", ["apply", "settle"])
def test_what_an_erase_stream_stores_is_taken_to_stand(
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


def test_erasures_that_were_stored_and_not_applied_do_not_stand(
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


def test_another_batch_than_the_one_that_was_taken_to_stand_was_settled(session: SparkSession, tmp_path: Path) -> None:
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


@KEEPS_UP
def test_the_first_erasures_came_meanwhile(session: SparkSession, tmp_path: Path, *, keeps_up: bool) -> None:
    """What becomes of a row hangs on another of its columns now, which nobody knew when it was computed."""
    b = bench(session, tmp_path)
    b.streams = (*b.streams[:2], stream("TTL", Erase(match={"person": "person", "id": "id"}, lift_when=None)))
    b.run("In", records("1:a", "2:a"), RECORD, 0)
    b.run("Mut", requests("z>z"), REQUEST, 0)
    put = ahead(b, "Mut", 1, "a>p", keeps_up=keeps_up)
    b.run("TTL", [("p", "1")], "person string, id string", 0)
    put()
    assert persons(b) == {"2": "p"}


def noting(done: list[str], real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that says each time that it is called."""

    def noted(*given: Any) -> Any:
        done.append(real.__name__)
        return real(*given)

    return noted


def test_what_was_followed_before_the_turn_is_only_put_in_it(
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
    for owner, name in ((Run, "_execute"), (Run, "_execute_on"), (RequestReader, "read"), (TargetRows, "meet")):
        monkeypatch.setattr(owner, name, noting(done, getattr(owner, name)))
    told: list[StatementPublished] = []
    end = headgate.on_statement(told.append)
    turn = b.turn("Mut", 1)
    # As a look that begins when the turn has come: nothing follows any more.
    turn.between = lambda step: kind.keep_up(before=())
    result = kind.run_batch(turn, frame, 1)
    end()
    assert done == []
    store = commit_paths(TableLocation(f"{b.root}/_headgate/requests/Mut"))[-2].read_text()
    assert store.count('{"add":') == 1, "what was stored is one file, whatever the cores"
    assert (result.rows_written, persons(b)) == (4, {"1": "p", "3": "c", "9": "p"})
    assert [(event.level, event.attempts) for event in told if event.operation == "MERGE"] == [(3, 2)]


@pytest.mark.parametrize(
    "step", [pytest.param("store", marks=pytest.mark.matrix), "apply", pytest.param("settle", marks=pytest.mark.matrix)]
)
def test_a_crash_in_the_turn_is_made_up_for(session: SparkSession, tmp_path: Path, step: str) -> None:
    """The next run has computed nothing before, or has computed it anew: the same table, the same counts."""
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


def last_lines(b: Bench) -> list[str]:
    """Of the last commit of the target."""
    return commit_paths(b.target)[-1].read_text().splitlines()


# ------------------------------------------------------------------------------------------------ functions of the user


class Written:
    """A query of the user's own over `root/in`, which merges into a table."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.path, self.root = spark, str(root / "table"), root
        spark.sql(
            f"CREATE TABLE delta.`{self.path}` (id BIGINT, v STRING) USING delta "
            "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )
        self.drop(0, "a", 1, 2, 3)
        self.job = headgate.JobCoordinator(
            spark, name="Own", lock="L", storage=str(root / "_headgate"), tables=[self.path]
        )

    def drop(self, number: int, v: str, *ids: int) -> None:
        """A file of the source."""
        rows = self.spark.createDataFrame([(id_, v) for id_ in ids], "id BIGINT, v STRING")
        rows.coalesce(1).write.mode("append").parquet(str(self.root / "in"))

    def merge(self, batch: DataFrame, batch_id: int) -> None:
        """An upsert."""
        target = headgate.DeltaTable.forPath(batch.sparkSession, self.path).alias("t")
        merge = target.merge(batch.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def update(self, batch: DataFrame, batch_id: int) -> None:
        """Of rows that are there."""
        target = headgate.DeltaTable.forPath(batch.sparkSession, self.path).alias("t")
        target.merge(batch.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()

    def run(self, function: Callable[[DataFrame, int], None]) -> headgate.RunReport:
        """One turn."""

        def make() -> DataStreamWriter:
            frame = self.spark.readStream.schema("id BIGINT, v STRING").parquet(str(self.root / "in"))
            writer = frame.writeStream.foreachBatch(headgate.coordinated(function, self.job, coverage="publish"))
            return writer.option("checkpointLocation", str(self.root / "checkpoint"))

        return headgate.supervise(make, self.job, once=True)

    def rows(self) -> dict[int, str]:
        """The table."""
        return {row.id: row.v for row in self.spark.read.format("delta").load(self.path).collect()}


@pytest.fixture
def written(session: SparkSession, tmp_path: Path) -> Iterator[Written]:
    """Ended after the test."""
    made = Written(session, tmp_path)
    yield made
    made.job.close()


def test_a_function_is_computed_before_its_turn_and_put_in_it(written: Written) -> None:
    """Another's rows that came in between belong to its source: it follows them, once, with the turn's token."""
    calls = []

    def merge_beside_another(batch: DataFrame, batch_id: int) -> None:
        written.merge(batch, batch_id)
        calls.append(batch_id)
        written.spark.newSession().sql("SELECT 1").collect()
        assert written.rows() == {}

    assert written.run(merge_beside_another).turns == 1
    assert written.rows() == {1: "a", 2: "a", 3: "a"}
    assert calls == [0]
    written.drop(1, "b", 3, 4)
    written.run(written.merge)
    assert written.rows() == {1: "a", 2: "a", 3: "b", 4: "b"}
    assert all(
        commit_tokens(path.read_text())
        for path in commit_paths(written.path)
        if commit_info(path.read_text()).get("operation") == "MERGE"
    )


def test_a_function_keeps_up_while_another_has_the_turn(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while it waits is followed then, and its turn has nothing left to execute."""
    written.run(written.merge)
    written.drop(1, "b", 3, 4)
    followed: list[Staged] = []
    done: list[str] = []
    monkeypatch.setattr(Run, "_execute_on", noting(done, Run._execute_on))
    monkeypatch.setattr(job, "follow", lambda before: followed.append(follow(before)) or followed[-1])
    own = written.spark.newSession()  # the turn's token is set there
    other = headgate.JobCoordinator(
        own, name="Other", lock="L", storage=str(written.root / "_headgate"), tables=[written.path]
    )
    late: list[int] = []

    def put(staged: Staged, token: WriteToken) -> object:
        before = len(followed)
        written.job.keep_up(before=())  # as a look that begins when the turn has come
        late.append(len(followed) - before)
        return finish(staged, token)

    monkeypatch.setattr(job, "finish", put)
    with other.turn():
        run = threading.Thread(target=written.run, args=(written.update,))
        run.start()
        wait_until(lambda: len(followed) > 0)
        own.sql(f"INSERT INTO delta.`{written.path}` VALUES (4, 'x')")
        wait_until(lambda: any(len(one.reasons) > 0 for one in followed))
    run.join()
    other.close()
    assert done == ["_execute_on"]
    assert late == [0], "what is being put follows nothing any more"
    assert written.rows() == {1: "a", 2: "a", 3: "b", 4: "b"}


def test_what_cannot_keep_up_is_said_in_its_turn(session: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """It keeps up whenever this driver knows of a new commit, until the turn has come or an error has ended it."""

    class Work:
        is_computed_ahead = True
        version, looks, error = 0, 0, ""
        others: tuple[object, ...] = ()

        def known(self) -> object:
            return self.version

        def keep_up(self, *, before: Collection[str]) -> None:
            self.looks, self.others = self.looks + 1, (*self.others, before)
            if self.error:
                raise ValueError(self.error)

    work = Work()
    with keeping_up(work, Gate(session), "Own", session, lambda: [str(work.version)]) as has_come:
        wait_until(lambda: work.looks == 1)
        work.version = 1
        wait_until(lambda: work.looks == 2)
        has_come()
        work.version = 2
        time.sleep(3 * LOOK_S)
        assert work.looks == 2
        assert work.others == (["0"], ["1"])
    with caplog.at_level("DEBUG", "headgate"), keeping_up(work, Gate(session), "Own", session, tuple):
        work.error = "the disk is full"
        wait_until(lambda: "Own does not keep up before its turn" in caplog.text)
        work.error, looks = "", work.looks
        work.version = 3
        time.sleep(3 * LOOK_S)
        assert work.looks == looks


def test_a_function_that_commits_something_else_is_refused(written: Written) -> None:
    """A stock write would be outside of the turn; of two statements the second would not see the first."""

    def stock(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("delta").mode("append").save(written.path)

    def twice(batch: DataFrame, batch_id: int) -> None:
        written.merge(batch, batch_id)
        written.merge(batch, batch_id)

    for function, message in ((stock, "something else than one statement"), (twice, "a batch is one statement")):
        with pytest.raises(InvalidRequest, match=message):
            written.run(function)
        assert written.rows() == {}
    written.run(written.merge)
    assert written.rows() == {1: "a", 2: "a", 3: "a"}


def test_a_function_is_called_again_where_another_table_of_its_job_has_changed(written: Written) -> None:
    """What it read there is not of its statement's table, which alone is followed; nor is what had it write nothing."""
    side = make_table(written.spark, written.root / "side", "id BIGINT, said STRING")
    written.job.close()
    written.job = headgate.JobCoordinator(
        written.spark, name="Own", lock="L", storage=str(written.root / "_headgate"), tables=[written.path, side]
    )
    calls: list[int] = []

    def joined(batch: DataFrame, batch_id: int) -> None:
        said = batch.sparkSession.read.format("delta").load(side)
        if not said.isEmpty():
            found = batch.join(said, "id").selectExpr("id", "said AS v")
            written.merge(found, batch_id)
        calls.append(batch_id)
        if len(calls) in (1, 3):
            first = batch_id + 1
            text = f"INSERT INTO delta.`{side}` VALUES ({first}, 'x'), ({first + 2}, 'y')"
            other = threading.Thread(target=written.spark.newSession().sql, args=(text,))
            other.start()
            other.join()

    written.run(joined)
    assert (calls, written.rows()) == ([0, 0], {1: "x", 3: "y"})
    written.drop(1, "b", 2, 4)
    written.run(joined)
    assert (calls, written.rows()) == ([0, 0, 1, 1], {1: "x", 2: "x", 3: "y", 4: "y"})


# ------------------------------------------------------------------------------------------------ requests refused


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"set_": {"person": "person", "other": "op"}}, {"set_": {"other": "op", "person": "person"}}),
        ({"match": {"id": "alias", "alias": "op"}}, {"match": {"alias": "op", "id": "alias"}}),
    ],
    ids=["set", "match"],
)
def test_requests_of_other_columns_are_refused_before_the_turn(
    session: SparkSession, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Two columns of one type in another order than those of the requests that were stored: no value gets into the other's."""
    columns = f"{COLUMNS}, other STRING"
    b = bench(session, tmp_path, columns=columns, **before)
    b.run("In", records("1:a", "2:b"), RECORD, 0)
    b.run("Mut", requests("b>q"), REQUEST, 0)
    changed = bench(session, tmp_path, columns=columns, **after)
    with pytest.raises(InvalidRequest, match="stored for other columns"):
        ahead(changed, "Mut", 1, "a>p")
    assert len(b.request_rows("Mut")) == 1


@pytest.mark.parametrize("on_bad_record", ["fail", "dead_letter"])
def test_a_bad_record_stops_what_is_computed_before_the_turn(
    session: SparkSession, tmp_path: Path, on_bad_record: str
) -> None:
    """Of a stream with a function, too: it is told which record it is, and nothing stays in memory; or it is kept apart."""
    b = bench(session, tmp_path)
    more = {"transform": lambda batch: batch.withColumn("person", F.upper("person")), "on_bad_record": on_bad_record}
    b.streams = tuple(replace(one, **more) if one.name == "Mut" else one for one in b.streams)
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
