"""The gate: commits that are kept back, tables that take turns, reservations; with stock statements on real tables."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.actions import Captured, Committed
from lakegate.delta.gate import JOB_CONF, Gate
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import JVM_ERRORS, unless_gone
from lakegate.errors import TurnNotGranted
from lakegate.ids import TableLocation
from lakegate.rows.quick import QUICK_CONF
from lakegate.streams.maintenance.statements import CHECK_CONF
from tests.delta.delta_tables import commit_paths, foreign_commit, ids, make_table, rows, txn
from tests.waiting import is_held, wait_until, waits_for

VECTORS = {"enableDeletionVectors": "true"}


@pytest.fixture
def gate(session: SparkSession) -> Gate:
    """The JVM's."""
    return Gate(session)


@pytest.fixture
def table(session: SparkSession, tmp_path: Path) -> TableLocation:
    """Ten rows in one file, with deletion vectors."""
    made = make_table(session, tmp_path / "t", **VECTORS)
    rows(session, *range(10)).write.format("delta").mode("append").save(made)
    return made


@pytest.fixture
def governed(gate: Gate, table: TableLocation) -> Iterator[TableLocation]:
    """The same, with turns."""
    gate.govern(table)
    yield table
    gate.release(table)


HELD_MS = 600_000


def note_of(table: TableLocation) -> Path:
    """Returns the path of the note that announces a reservation to other drivers."""
    return Path(table, "_lakegate", "reserved")


def tell(table: TableLocation, text: str) -> None:
    """Writes the note, as another driver does."""
    note_of(table).parent.mkdir(exist_ok=True)
    note_of(table).with_name(".reserved.crc").unlink(missing_ok=True)
    note_of(table).write_text(text)


def append(session: SparkSession, table: TableLocation, id_: int) -> None:
    """By stock Delta."""
    rows(session, id_).write.format("delta").mode("append").save(table)


def run(gate: Gate, work: Callable[[], object], *, is_staged: bool = False) -> Captured | Committed:
    """A statement through the gate."""
    return gate.run(work, statement_id=uuid.uuid4().hex, is_staged=is_staged).commit


def data_files(table: TableLocation) -> set[Path]:
    """Files below a table, but for its log."""
    return {path for path in Path(table).rglob("*") if path.is_file() and "_delta_log" not in path.parts}


def bytes_of(table: TableLocation) -> dict[str, bytes]:
    """The log's commits."""
    return {path.name: path.read_bytes() for path in commit_paths(table)}


def delete(session: SparkSession, table: TableLocation, condition: str) -> Callable[[], object]:
    """A stock statement."""
    return lambda: session.sql(f"DELETE FROM delta.`{table}` WHERE {condition}")


def test_a_statement_whose_version_is_free_is_put_and_gets_its_version(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """Capture changes nothing without a concurrent commit; a statement without effect has no version."""
    assert run(gate, delete(session, table, "id = 3")) == Committed(2)
    assert run(gate, delete(session, table, "id = 3")) == Committed(None)
    assert ids(session, table) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_staged_statement_leaves_its_commit_and_no_version(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """The table is as it was; the commit is whole: what it was computed on, its history and its actions."""
    before = bytes_of(table)
    found = run(gate, delete(session, table, "id < 3"), is_staged=True)
    assert isinstance(found, Captured)
    assert bytes_of(table) == before
    assert (found.version, found.info["operation"]) == (1, "DELETE")
    assert sorted(action.kind for action in found.actions) == ["add", "remove"]
    (added,) = [action.body for action in found.actions if action.kind == "add"]
    assert added["deletionVector"]["cardinality"] == 3
    assert ids(session, table) == list(range(10))


def test_a_lost_commit_is_kept_and_delta_does_not_repeat_or_refuse_it(
    session: SparkSession, gate: Gate, table: TableLocation, tmp_path: Path
) -> None:
    """Another commit takes the version while the statement runs: its lines are kept, computed on the version before."""
    started, released = tmp_path / "started", tmp_path / "released"
    slow = waits_for(rows(session, 3), started, released)

    def merge() -> None:
        target = DeltaTable.forPath(session, table).alias("t")
        target.merge(slow.alias("s"), "t.id = s.id").whenMatchedDelete().execute()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, gate, merge)
        wait_until(lambda: started.exists() or running.done())
        foreign_commit(table, txn("x", 1))
        released.touch()
        found = running.result()
    assert isinstance(found, Captured)
    assert (found.version, found.info["operation"]) == (1, "MERGE")
    assert len(commit_paths(table)) == 3
    assert ids(session, table) == list(range(10))


@contextmanager
def put_by(session: SparkSession, token: str, history: dict[str, Any]) -> Iterator[None]:
    """Lets the statement with a token put the commits of this thread."""
    gate = cast("Any", session._jvm).io.github.lakegate.Gate
    gate.enter("pass", token, json.dumps(history))
    try:
        yield
    finally:
        gate.leave()


def test_the_history_that_is_given_is_put_in_the_commit(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """Fields of `commitInfo` are replaced; the transaction's own stay."""
    history = {"operation": "MERGE", "operationParameters": {"predicate": "é"}, "userMetadata": "mine"}
    with put_by(session, "token", history):
        rows(session, 20).write.format("delta").mode("append").save(table)
    info = json.loads(commit_paths(table)[-1].read_text().split("\n")[0])["commitInfo"]
    assert {key: info[key] for key in history} == history
    assert info["readVersion"] == 1
    assert info["txnId"]
    assert session.sql(f"DESCRIBE HISTORY delta.`{table}`").first()["operation"] == "MERGE"


def statements(session: SparkSession, table: TableLocation, tmp_path: Path) -> dict[str, Callable[[], object]]:
    """Everything stock that commits."""
    sql, name = session.sql, f"delta.`{table}`"
    one = rows(session, 99)
    one.write.mode("append").parquet(str(tmp_path / "in"))
    stream = session.readStream.schema("id BIGINT, v STRING").parquet(str(tmp_path / "in")).writeStream

    def sink() -> None:
        writer = stream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(table).awaitTermination()

    def each_batch() -> None:
        writer = stream.foreachBatch(lambda batch, _: batch.write.format("delta").mode("append").save(table))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint of foreachBatch"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def vacuum() -> None:
        with confs(session, {CHECK_CONF: "false"}):
            sql(f"VACUUM {name} RETAIN 0 HOURS")

    return {
        "append": lambda: one.write.format("delta").mode("append").save(table),
        "overwrite": lambda: one.write.format("delta").mode("overwrite").save(table),
        "delete": delete(session, table, "id = 1"),
        "update": lambda: sql(f"UPDATE {name} SET v = 'b' WHERE id = 1"),
        "merge": lambda: (
            DeltaTable.forPath(session, table)
            .alias("t")
            .merge(one.alias("s"), "t.id = s.id")
            .whenNotMatchedInsertAll()
            .execute()
        ),
        "optimize": lambda: sql(f"OPTIMIZE {name}"),
        "zorder": lambda: sql(f"OPTIMIZE {name} ZORDER BY (id)"),
        "properties": lambda: sql(f"ALTER TABLE {name} SET TBLPROPERTIES (a = 'b')"),
        "add column": lambda: sql(f"ALTER TABLE {name} ADD COLUMN (new INT)"),
        "restore": lambda: sql(f"RESTORE TABLE {name} TO VERSION AS OF 1"),
        "vacuum": vacuum,
        "stream": sink,
        "foreachBatch": each_batch,
    }


@pytest.mark.slow
def test_without_its_turn_nothing_stock_commits_to_a_governed_table(
    session: SparkSession, gate: Gate, governed: TableLocation, tmp_path: Path
) -> None:
    """Each is refused with the holder's name; no version, no row and no file of the table is another afterwards.

    With the turn, the streams go on from their checkpoints: each row is there once for each.
    """
    gate.release(governed)
    rows(session, 10).write.format("delta").mode("append").save(governed)  # so that OPTIMIZE and RESTORE have work
    gate.govern(governed)
    before = bytes_of(governed)
    unused = Path(governed) / "part-of-nothing.snappy.parquet"
    shutil.copy(min(data_files(governed)), unused)
    gate.grant(governed, "Ingestion", 3, 600_000)
    works = statements(session, governed, tmp_path)
    for name, work in works.items():
        with pytest.raises(JVM_ERRORS, match="was refused: Ingestion has the turn") as refused:
            work()
        assert bytes_of(governed) == before, name
        if name == "append":
            with pytest.raises(TurnNotGranted, match="Ingestion has the turn; nothing was written"):
                run(gate, work)
        assert refused
    assert ids(session, governed) == list(range(11))
    assert unused.exists(), "VACUUM is refused before it deletes anything"
    with confs(session, {JOB_CONF: "Ingestion"}):
        works["vacuum"]()
        for _ in range(2):
            works["stream"]()
            works["foreachBatch"]()
            assert ids(session, governed) == [*range(11), 99, 99]
    assert not unused.exists(), "there was something to delete"


def test_with_its_turn_a_job_commits_and_after_it_no_more(
    session: SparkSession, gate: Gate, governed: TableLocation
) -> None:
    """An older epoch does not take the turn back; it ends by revocation, and by its time."""
    work = delete(session, governed, "id = 1")
    with confs(session, {JOB_CONF: "A"}):
        with pytest.raises(TurnNotGranted, match="by A was refused: nobody has the turn"):
            run(gate, work)
        assert gate.grant(governed, "A", 5, 600_000)
        assert not gate.grant(governed, "B", 4, 600_000)
        assert run(gate, work) == Committed(2)
        gate.revoke(governed, 4)
        assert run(gate, delete(session, governed, "id = 2")) == Committed(3)
        gate.revoke(governed, 5)
        with pytest.raises(TurnNotGranted, match="nobody has the turn"):
            run(gate, delete(session, governed, "id = 3"))
        gate.grant(governed, "A", 5, 1)
        time.sleep(0.01)
        with pytest.raises(TurnNotGranted, match="the turn of A has run out"):
            run(gate, delete(session, governed, "id = 3"))
    assert ids(session, governed) == [0, 3, 4, 5, 6, 7, 8, 9]


def test_a_commit_waits_for_its_turn_as_long_as_it_may(
    session: SparkSession, gate: Gate, governed: TableLocation
) -> None:
    """It goes through as soon as the turn is given."""
    with (
        confs(session, {JOB_CONF: "A", "spark.lakegate.waitMs": "60000"}),
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(run, gate, delete(session, governed, "id = 1"))
        time.sleep(2)
        assert not running.done()
        assert gate.grant(governed, "A", 1, 600_000)
        assert running.result() == Committed(2)


@pytest.mark.parametrize(("late", "early"), [("DELETE", "UPDATE"), ("UPDATE", "DELETE"), ("DELETE", "DELETE")])
def test_a_commit_that_was_held_at_the_gate_follows_those_that_went_before(
    session: SparkSession, gate: Gate, governed: TableLocation, late: str, early: str
) -> None:
    """Computed on the same version, in the same file, put in the order of the turns; the later one keeps its changes."""
    texts = {"DELETE": "DELETE FROM delta.`{}` WHERE id = {}", "UPDATE": "UPDATE delta.`{}` SET id = -id WHERE id = {}"}
    expected = sorted({*range(10), *(-row for row, kind in ((1, late), (2, early)) if kind == "UPDATE")} - {1, 2})
    holding = session.newSession()
    # A quick DELETE writes no file for a small vector.
    for key, value in {JOB_CONF: "late", "spark.lakegate.waitMs": "60000", QUICK_CONF: "off"}.items():
        holding.conf.set(key, value)
    before = data_files(governed)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(lakegate.sql, holding, texts[late].format(governed, 1))
        wait_until(lambda: data_files(governed) != before or held.done())
        time.sleep(2)  # its vector is written: the commit comes next
        assert not held.done()
        gate.grant(governed, "early", 1, 600_000)
        with confs(session, {JOB_CONF: "early"}):
            assert lakegate.sql(session, texts[early].format(governed, 2)).lakegate.level == 0
        gate.grant(governed, "late", 2, 600_000)
        ended = held.result().lakegate
    assert (ended.level, ended.attempts) == (2, 1)
    assert ids(session, governed) == expected


@pytest.mark.slow
def test_without_being_governed_a_table_refuses_jobs_alone(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """Those of the thread, and of every thread of a session that was left a job's; what is no job's commits as it likes."""
    own = session.newSession()
    left = delete(own, table, "id = 2")
    assert gate.grant(table, "A", 5, 600_000)
    with gate.acting("A", own):
        delete(session, table, "id = 1")()
        assert gate.grant(table, "A", 5, 1)
        time.sleep(0.01)
        with pytest.raises(JVM_ERRORS, match="the turn of A has run out"):
            delete(session, table, "id = 3")()
        with pytest.raises(TurnNotGranted, match="the turn of A has run out"), gate.acting("A"):
            run(gate, delete(session, table, "id = 3"))
        assert gate.grant(table, "A", 5, 600_000)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(left).result()
        gate.revoke(table, 5)
        with pytest.raises(JVM_ERRORS, match="by A was refused: nobody has the turn"):
            pool.submit(delete(own, table, "id = 3")).result()
        assert gate.grant(table, "B", 6, 600_000)
        with pytest.raises(JVM_ERRORS, match="by A was refused: B has the turn"):
            pool.submit(delete(own, table, "id = 3")).result()
    delete(session, table, "id = 4")()
    assert ids(session, table) == [0, 3, 5, 6, 7, 8, 9]
    gate.release(table)


def test_a_reservation_keeps_own_statements_and_holds_stock_ones(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """A statement of ours is kept though its version is free; a stock one goes on when the reservation ends."""
    assert gate.reserve(table, "one", HELD_MS)
    try:
        assert not gate.reserve(table, "another", HELD_MS)
        assert isinstance(run(gate, delete(session, table, "id = 1")), Captured)
        with put_by(session, "one", {}):
            append(session, table, 21)
        assert gate.reserve(table, "one", HELD_MS), "its commit has ended it"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(append, session, table, 22)
            wait_until(lambda: is_held(session))
            assert len(commit_paths(table)) == 3
            gate.unreserve(table, "one")
            running.result()
    finally:
        gate.unreserve(table, "one")
    assert len(commit_paths(table)) == 4
    assert not note_of(table).exists()
    assert run(gate, delete(session, table, "id = 1")) == Committed(4)


def test_a_reservation_expires_unless_it_is_renewed(session: SparkSession, gate: Gate, table: TableLocation) -> None:
    """No writer waits longer than the reservation; a holder that lost it to another has to wait for that one."""
    assert gate.reserve(table, "one", 1)
    append(session, table, 20)
    assert gate.reserve(table, "one", 1)
    assert gate.reserve(table, "one", HELD_MS), "it is its own"
    assert not gate.reserve(table, "another", HELD_MS)
    assert gate.reserve(table, "one", 1)
    wait_until(lambda: gate.reserve(table, "another", HELD_MS))
    try:
        assert not gate.reserve(table, "one", HELD_MS)
        gate.unreserve(table, "one")
        assert isinstance(run(gate, delete(session, table, "id = 1")), Captured), "that was not the other's end"
    finally:
        gate.unreserve(table, "another")
    assert run(gate, delete(session, table, "id = 1")) == Committed(3)


def test_a_reservation_ends_with_its_commit(session: SparkSession, gate: Gate, table: TableLocation) -> None:
    """A hook that commits in the statement's thread, as auto-compaction does, does not wait for the statement."""
    assert gate.reserve(table, "one", HELD_MS)

    def statement_and_hook() -> None:
        with put_by(session, "one", {}):
            append(session, table, 20)
            append(session, table, 21)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(statement_and_hook)
        try:
            running.result(timeout=40)
        finally:
            gate.unreserve(table, "one")
    assert len(commit_paths(table)) == 4


def test_a_reservation_of_another_driver_is_heeded(session: SparkSession, gate: Gate, table: TableLocation) -> None:
    """A note next to the table announces it: our statements are kept, stock ones wait, and no other driver can reserve."""
    tell(table, f"another {HELD_MS} 1")
    assert not gate.reserve(table, "one", HELD_MS)
    assert isinstance(run(gate, delete(session, table, "id = 1")), Captured)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(append, session, table, 20)
        wait_until(lambda: is_held(session))
        assert len(commit_paths(table)) == 2
        note_of(table).unlink()
        running.result()
    assert gate.reserve(table, "one", HELD_MS)
    assert note_of(table).read_text().startswith(f"one {HELD_MS} ")
    gate.unreserve(table, "one")
    assert not note_of(table).exists()


def test_a_dead_driver_blocks_no_writer_for_good(session: SparkSession, gate: Gate, table: TableLocation) -> None:
    """Its note is heeded once, for as long as it says, and then removed; also that of a driver that was slower than it thought."""
    tell(table, "dead 200 1")
    append(session, table, 20)
    wait_until(lambda: gate.reserve(table, "one", HELD_MS))
    assert note_of(table).read_text().startswith("one ")
    tell(table, "dead 200 2")
    gate.unreserve(table, "one")
    assert note_of(table).read_text() == "dead 200 2", "it is another's"
    wait_until(lambda: run(gate, delete(session, table, "id = 1")) == Committed(None) or not note_of(table).exists())
    assert ids(session, table) == [0, *range(2, 10), 20]


@pytest.mark.parametrize("text", ["", "half", "one two three", "one 99999999999999999999 1", "a b"])
def test_a_note_that_is_half_written_says_nothing(
    session: SparkSession, gate: Gate, table: TableLocation, text: str
) -> None:
    """The same holds for a note of another kind: no writer waits for it."""
    tell(table, text)
    append(session, table, 20)
    assert gate.reserve(table, "one", HELD_MS)
    gate.unreserve(table, "one")


@pytest.mark.parametrize("is_taken", [False, True], ids=["the version is free", "the version is taken"])
def test_a_writer_that_has_waited_does_not_wait_for_the_next_reservation(
    session: SparkSession, gate: Gate, table: TableLocation, *, is_taken: bool
) -> None:
    """Statements that reserve the table one after another keep no append away for good, also where each takes its version."""
    assert gate.reserve(table, "one", HELD_MS)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(append, session, table, 20)
        wait_until(lambda: is_held(session))
        tell(table, f"two {HELD_MS} 1")
        time.sleep(0.5)  # it is looked at ten times a second
        if is_taken:
            foreign_commit(table, txn("one", 1))
        gate.unreserve(table, "one")
        try:
            running.result(timeout=60)
            assert isinstance(run(gate, delete(session, table, "id = 1")), Captured), "who comes now waits"
        finally:
            note_of(table).unlink()


def test_a_renewed_reservation_does_not_prolong_a_wait_that_has_begun(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """The holder renews its reservation, as a statement does that a writer without a gate outruns."""
    append(session, table, 30)  # the next append is planned faster, so that it comes to the gate in time
    assert gate.reserve(table, "one", 5_000)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(append, session, table, 20)
        wait_until(lambda: is_held(session))
        assert gate.reserve(table, "one", HELD_MS)
        try:
            running.result(timeout=60)
            assert isinstance(run(gate, delete(session, table, "id = 1")), Captured)
        finally:
            gate.unreserve(table, "one")


def test_an_own_note_that_could_not_be_removed_blocks_no_writer_here(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """For example where the store permits no deletes."""
    assert gate.reserve(table, "one", HELD_MS)
    note = note_of(table).read_text()
    gate.unreserve(table, "one")
    tell(table, note)
    assert run(gate, delete(session, table, "id = 1")) == Committed(2)
    wait_until(lambda: gate.reserve(table, "another", HELD_MS))
    gate.unreserve(table, "another")
    assert not note_of(table).exists()


def test_a_note_that_cannot_be_read_for_once_is_heeded_on(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """As where a request fails; one that is long past is not waited for."""
    tell(table, f"another {HELD_MS} 1")
    assert isinstance(run(gate, delete(session, table, "id = 1")), Captured)
    damaged = note_of(table).with_name(".reserved.crc")
    damaged.write_bytes(b"crc\0\0\0\2\0\0\0\0\0")
    time.sleep(0.5)
    assert isinstance(run(gate, delete(session, table, "id = 1")), Captured)
    tell(table, f"another {HELD_MS} 2")
    long_ago = time.time() - 86_400
    os.utime(note_of(table), (long_ago, long_ago))
    wait_until(lambda: gate.reserve(table, "one", HELD_MS))
    gate.unreserve(table, "one")


RESERVING = """
import os, sys
import lakegate
from lakegate.delta.gate import Gate

spark = lakegate.session("reserving", conf={"spark.master": "local[1]", "spark.ui.enabled": "false"})
assert Gate(spark).reserve(sys.argv[1], "dead", 86_000_000)
print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_driver_that_was_killed_with_a_reservation_blocks_no_writer(
    session: SparkSession, gate: Gate, table: TableLocation
) -> None:
    """On its machine its process is looked for; while it lives, others wait."""
    with subprocess.Popen(
        [sys.executable, "-c", RESERVING, table], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        jvm = int(other.stdout.readline())
        words = note_of(table).read_text().split(" ")
        assert (words[0], words[2].split("/")[3]) == ("dead", str(jvm))
        time.sleep(0.5)
        assert not gate.reserve(table, "one", HELD_MS), "it lives"
        for pid in (other.pid, jvm):
            os.kill(pid, signal.SIGKILL)
    began_s = time.monotonic()
    append(session, table, 20)
    wait_until(lambda: gate.reserve(table, "one", HELD_MS))
    assert time.monotonic() - began_s < 30
    gate.unreserve(table, "one")
    assert 20 in ids(session, table)


@pytest.mark.matrix
def test_a_silent_driver_of_another_machine_blocks_no_writer_for_long(
    session: SparkSession, table: TableLocation
) -> None:
    """It writes its note again while it lives; also one that was silent for long before it was seen is not waited for."""
    owner = "its-jvm/{}/another-machine/1/1"
    gates = []
    for quiet_ms in ("2000", "86400000"):
        patient = session.newSession()
        patient.conf.set("spark.lakegate.quietMs", quiet_ms)
        gates.append(Gate(patient))
    for number in range(4):  # it lives for longer than that
        tell(table, f"other 86000000 {owner.format(number)}")
        time.sleep(0.7)
        assert not gates[0].reserve(table, "one", HELD_MS)
    wait_until(lambda: gates[0].reserve(table, "one", HELD_MS))
    gates[0].unreserve(table, "one")
    tell(table, f"other 86000000 {owner.format(9)}")
    long_ago = time.time() - 1200
    os.utime(note_of(table), (long_ago, long_ago))
    wait_until(lambda: gates[1].reserve(table, "one", HELD_MS))
    gates[1].unreserve(table, "one")


def test_in_its_turn_a_job_asks_no_other_driver(session: SparkSession, gate: Gate, table: TableLocation) -> None:
    """No other job commits then; the note of a dead driver does not block its successor, and no note is written."""
    tell(table, f"dead {HELD_MS} 1")
    assert not gate.reserve(table, "one", HELD_MS, "A")
    assert gate.grant(table, "A", 1, HELD_MS)
    assert gate.reserve(table, "one", HELD_MS, "A")
    assert note_of(table).read_text() == f"dead {HELD_MS} 1"
    gate.unreserve(table, "one")
    gate.revoke(table, 1)
    gate.release(table)


STOPPED = """
import sys, threading, time
import lakegate
from pyspark.sql import functions as F
from lakegate.delta.gate import JOB_CONF, Gate

table, ready = sys.argv[1:]
spark = lakegate.session("stopped", conf={"spark.master": "local[1]", "spark.ui.enabled": "false"})
spark.range(10).write.format("delta").save(table)
gate = Gate(spark)
gate.govern(table)
gate.grant(table, "A", 1, 3_000)
spark.conf.set(JOB_CONF, "A")
# In the JVM, for longer than the turn lasts.
slow = "aggregate(sequence(0, 3000), 0L, (a, x) -> a + aggregate(sequence(0, 3000), 0L, (b, y) -> b + x * y % 7)) > 0"
threading.Timer(0.3, lambda: open(ready, "w").close()).start()
try:
    gate.run(lambda: spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3 AND {slow}"), statement_id="t")
except lakegate.errors.TurnNotGranted as refused:
    print("refused:", refused)
"""


@pytest.mark.slow
def test_a_turn_ends_though_python_stands_still(tmp_path: Path) -> None:
    """SIGSTOP of Python while its statement runs in the JVM: the JVM refuses the commit by its own clock."""
    table, ready = tmp_path / "t", tmp_path / "ready"
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(table), str(ready)],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not ready.exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(8)
        assert [path.name for path in commit_paths(TableLocation(str(table)))] == [f"{0:020}.json"]
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        log.close()
    assert "the turn of A has run out" in out, (tmp_path / "log").read_text()[-2000:]
    assert len(commit_paths(TableLocation(str(table)))) == 1


@pytest.mark.parametrize(
    ("met", "calls", "raised"),
    [
        ([None], 1, None),
        ([ConnectionRefusedError()], 1, None),
        ([Py4JError("cut off"), ConnectionRefusedError()], 2, None),
        ([ConnectionResetError(), ConnectionRefusedError()], 2, None),
        ([Py4JError("cut off"), None], 2, None),
        ([Py4JError("no"), Py4JError("again no")], 2, "again no"),
        ([ValueError("ours")], 1, "ours"),
    ],
)
def test_only_a_jvm_that_is_gone_needs_nothing_set_right(
    met: list[Exception | None], calls: int, raised: str | None
) -> None:
    """An error that was not its end is not passed over: what was to end could go on."""
    left = list(met)

    def set_right() -> None:
        error = left.pop(0)
        if error is not None:
            raise error

    with pytest.raises(Exception, match=raised) if raised else nullcontext():
        unless_gone(set_right)
    assert len(met) - len(left) == calls
