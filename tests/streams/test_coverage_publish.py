"""Coverage `publish`: a batch is computed before its turn and put in it; a result that is no longer valid is recomputed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakegate.config import Append
from lakegate.delta.commit_file import commit_info, commit_tokens
from lakegate.delta.gate import Gate
from lakegate.delta.idempotent_writes import append as append_rows
from lakegate.delta.post_commit import Afterwards, Work
from lakegate.ids import Epoch, TableLocation, TokenId
from lakegate.rows.committer import publisher
from lakegate.rows.conflict.read_set import Operation
from lakegate.rows.execution import Execution
from lakegate.rows.sql import statement
from lakegate.rows.statement import Dml
from lakegate.streams import append
from lakegate.streams.append import AppendStream
from lakegate.streams.interfaces import APPLY, SETTLE, STORE, BatchTurn, enter_all
from lakegate.streams.refresh import REST_S
from lakegate.streams.requests.erase import _Kept
from lakegate.streams.requests.visibility import StoredBatch, _stored
from lakegate.turns.protocol.fencing import Token
from tests.delta.delta_tables import commit_paths, ids, make_table, write_token
from tests.delta.delta_tables import rows as frame
from tests.stream_bench import Bench, Crash, stream, table
from tests.streams.staged_batches import ERASURE, OTHERS, ahead, files_of, noting, staged
from tests.streams.three_streams import COLUMNS, RECORD, REQUEST, bench, foreign, persons, records, requests

pytestmark = pytest.mark.slow

KEEP = Append(columns={"person": "alias"}, key=("id",), on_duplicate="keep_first")


def test_concurrent_appends_of_others_do_not_concern_a_computed_batch(session: SparkSession, tmp_path: Path) -> None:
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
    assert list(commit_tokens(last)) == ["lakegate/In"]
    assert json.loads(commit_info(last)["userMetadata"])["step"] == "append"
    assert staged(b, 1, "2:b", "3:c")().was_applied_before
    assert len(persons(b)) == 4


@pytest.mark.matrix
def test_a_request_that_became_active_meanwhile_is_met(session: SparkSession, tmp_path: Path) -> None:
    """The batch was computed without the request, so it is recomputed in its turn."""
    b = bench(session, tmp_path)
    b.run("In", records("1:a"), RECORD, 0)
    b.run("Mut", requests("x>y"), REQUEST, 0)
    put = staged(b, 1, "2:a")
    b.run("Mut", requests("a>p"), REQUEST, 1)
    put()
    assert persons(b) == {"1": "p", "2": "p"}


@pytest.mark.matrix
@pytest.mark.parametrize("on_bad_record", ["fail", "dead_letter"])
def test_a_recomputed_batch_is_not_read_again(session: SparkSession, tmp_path: Path, on_bad_record: str) -> None:
    """The function of the stream, which may take long or say something else each time, sees each record once."""
    looked_up = session.sparkContext.accumulator(0)

    def look_up(alias: str) -> str:
        looked_up.add(1)
        return alias

    function = F.udf(look_up, "string", useArrow=False).asNondeterministic()
    b = bench(session, tmp_path)
    more = {"on_bad_record": on_bad_record, "transform": lambda batch: batch.withColumn("alias", function("alias"))}
    b.streams = tuple(one.model_copy(update=more) if one.name == "In" else one for one in b.streams)
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
    token = write_token(1, 1, token_id=TokenId("lakegate/Own"))
    done = publisher(session).finish(before, token)
    assert (done.level, done.attempts) == (4, 2)
    assert commit_tokens(commit_paths(b.target)[-1].read_text()) == {"lakegate/Own": token.number}
    again = publisher(session).stage(dml)
    assert publisher(session).finish(again, token).version is not None, (
        "its number came before it was computed: the turn looks at it first"
    )
    twice = publisher(session).stage(dml)
    later = write_token(2, 1, token_id=TokenId("lakegate/Own"))
    publisher(session).finish(publisher(session).stage(dml), later)
    assert publisher(session).finish(twice, token).version is None
    assert persons(b) == {"1": "a!!!", "2": "b"}


def kept_up_in(b: Bench, kind: AppendStream, step: str) -> Callable[[str], None]:
    """A look of an append at what others have committed, before a step of another's turn."""
    return lambda name: kind.keep_up(before=()) if name == step else None


@pytest.mark.matrix
def test_rows_are_ready_when_the_turn_of_requests_ends(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An applied batch is active before its outcome is recorded: rows are computed with it, and only put in their own turn."""
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


@pytest.mark.matrix
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
            computed.extend([step] if kind._ahead.now().computed is not None else [])

    b.run("Mut", requests("a>p"), REQUEST, 1, between=look)
    assert computed == []
    look("settled")
    assert computed == ["settled"], "TTL has not had its turn"
    files = files_of(b)
    kind.run_batch(b.turn("In", 1), frame, 1)
    assert files_of(b) == files
    assert persons(b) == {"1": "p", "2": "p"}


@pytest.mark.matrix
def test_requests_that_were_stored_and_not_applied_are_not_active(session: SparkSession, tmp_path: Path) -> None:
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


@pytest.mark.matrix
def test_an_outcome_that_differs_from_the_assumed_one_is_met(session: SparkSession, tmp_path: Path) -> None:
    """More requests became active than were stored when the rows were computed."""
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


@pytest.mark.matrix
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


@pytest.mark.matrix
def test_a_batch_that_others_changed_is_recomputed_when_they_are_idle(session: SparkSession, tmp_path: Path) -> None:
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


def test_of_several_stored_batches_the_active_one_counts() -> None:
    """A checkpoint was lost: the query before it has left a batch, and the one after it has applied one and not settled it."""
    old, new = TokenId("lakegate/old"), TokenId("lakegate/new")
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
        rows = frame(session, id_)
        dml = Dml(
            session=session,
            table=location,
            operation=Operation.INSERT,
            execute=lambda: append_rows(rows, location, own),
        )
        publisher(session).publish(dml, own)

    insert(1)
    insert(2)
    assert ids(session, location) == [1]

    made = Execution.with_token

    def stamped(*given: Any) -> Any:
        """Executed, and not put yet."""
        append_rows(frame(session, 3), location, later)
        return made(*given)

    own = write_token(1, 2)
    with patch.object(Execution, "with_token", stamped):
        insert(4)
    insert(5)
    assert ids(session, location) == [1, 3]


# ------------------------------------------------------------------------------------------------------------ requests


@pytest.mark.matrix
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


@pytest.mark.matrix
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
    log = Path(b.root) / "_lakegate/requests/Mut/_delta_log"
    assert not list(log.glob("0*.checkpoint*"))
    for checkpoint in [more for work in later if (more := work()) is not None]:
        checkpoint()
    written = [int(path.name.split(".")[0]) for path in sorted(log.glob("0*.checkpoint*"))]
    assert written[0] == 1
    assert set(written) <= {
        1,
        2,
        3,
        4,
    }  # after a checkpoint the table rests: of those that are due at once, one is written
    assert persons(b) == {"1": "p"}
