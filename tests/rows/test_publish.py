"""Publishes on real tables: all statements or none, at each death of the publisher and with any other writer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import lakegate
from lakegate.delta import open_publishes
from lakegate.delta.commit_file import commit_tokens
from lakegate.delta.gate import Gate
from lakegate.delta.publish_protocol import DropIntent, DropNote, PutData, PutIntent, PutMarker, WriteNote
from lakegate.errors import CommitInDoubt, Corrupt, Fenced, InvalidRequest, TurnNotGranted, Unavailable
from lakegate.ids import TableLocation
from lakegate.rows import publish as publishing
from lakegate.rows.committer import publisher
from lakegate.rows.publish import Publish
from lakegate.turns.protocol.fencing import unpack
from tests.delta.delta_tables import commit_paths, foreign_commit, txn
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark]
Lake = tuple[str, str]


@pytest.fixture
def lake(session: SparkSession, tmp_path: Path) -> Lake:
    """Two tables, of ten rows each."""
    tables = str(tmp_path / "orders"), str(tmp_path / "lines")
    for table in tables:
        session.range(10).selectExpr("id", "0 AS v").write.format("delta").save(table)
    return tables


def ids(session: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in session.read.format("delta").load(table).collect())


def add(session: SparkSession, table: str, id_: int) -> None:
    lakegate.sql(session, f"INSERT INTO delta.`{table}` VALUES ({id_}, 1)")


def publish(session: SparkSession, lake: Lake, id_: int) -> Publish:
    """Adds a row to both tables."""
    with lakegate.publish(session, lake) as made:
        for table in lake:
            add(session, table, id_)
    return made


def add_and_raise(session: SparkSession, table: str) -> None:
    add(session, table, 10)
    raise RuntimeError


def add_both(session: SparkSession, one: str, other: str) -> None:
    for table in (one, other):
        add(session, table, 10)


def left(table: str) -> list[str]:
    """The files of publishes at a table."""
    return sorted(
        path.name for path in Path(table, "_lakegate").rglob("*") if path.is_file() and not path.name.startswith(".")
    )


def test_statements_of_a_publish_are_seen_together(session: SparkSession, lake: Lake) -> None:
    """Nothing of them before the end of the block; afterwards each table has one commit, and no file is left."""
    orders, lines = lake
    with lakegate.publish(session, lake) as made:
        lakegate.sql(session, f"UPDATE delta.`{orders}` SET v = 7 WHERE id < 3")
        lakegate.DeltaTable.forPath(session, lines).delete("id >= 4")
        assert ids(session, lines) == list(range(10))
    assert made.versions == {orders: 2, lines: 2}
    assert ids(session, lines) == [0, 1, 2, 3]
    assert session.read.format("delta").load(orders).where("v = 7").count() == 3
    assert made.snapshot.read(lines).count() == 4
    operations = [row.operation for row in session.sql(f"DESCRIBE HISTORY delta.`{lines}`").collect()]
    assert operations == ["DELETE", "PUBLISH", "WRITE"]
    assert left(orders) == left(lines) == []
    assert repr(made.snapshot) in made.snapshot._repr_html_() or "lines" in made.snapshot._repr_html_()


def test_a_statement_that_finds_nothing_takes_part(session: SparkSession, lake: Lake) -> None:
    """Rows for it may come before the publish is made; a table without a statement gets no commit."""
    orders, lines = lake
    with lakegate.publish(session, lake) as made:
        lakegate.sql(session, f"DELETE FROM delta.`{orders}` WHERE id = 77")
        add(session, lines, 10)
    assert made.versions == {orders: 2, lines: 2}
    assert ids(session, orders) == list(range(10))
    with lakegate.publish(session, lake) as made:
        add(session, lines, 11)
    assert made.versions == {lines: 4}


def test_an_error_in_the_block_publishes_nothing(session: SparkSession, lake: Lake) -> None:
    """And leaves nothing behind."""
    with pytest.raises(RuntimeError), lakegate.publish(session, lake):
        add_and_raise(session, lake[0])
    assert ids(session, lake[0]) == list(range(10))
    assert left(lake[0]) == []


def test_a_statement_that_lost_is_executed_again(session: SparkSession, lake: Lake) -> None:
    """Both tables were changed between the statements and the end of the block: the result is that of a serial run."""
    orders, lines = lake
    with lakegate.publish(session, lake):
        lakegate.sql(session, f"UPDATE delta.`{orders}` SET v = v + 10 WHERE id < 5")
        lakegate.sql(session, f"DELETE FROM delta.`{lines}` WHERE v = 5")
        with ThreadPoolExecutor() as pool:  # threads of their own have no publish
            pool.submit(lakegate.sql, session, f"UPDATE delta.`{orders}` SET v = v + 1").result()
            pool.submit(lakegate.sql, session, f"UPDATE delta.`{lines}` SET v = 5 WHERE id > 7").result()
    found = {row.id: row.v for row in session.read.format("delta").load(orders).collect()}
    assert found == {id_: 11 if id_ < 5 else 1 for id_ in range(10)}
    assert ids(session, lines) == list(range(8))


class Died(BaseException):
    """Stands for kill -9: nothing is done after it."""


def dies_after(monkeypatch: pytest.MonkeyPatch, number: int | None = None, kind: type = object) -> list[object]:
    """Lets the publisher die after this effect, or before its first effect of a kind; returns the list of its effects."""
    effects: list[object] = []
    real = Publish._answer

    def answer(self: Publish, effect: Any) -> Any:
        if number is None and isinstance(effect, kind):
            raise Died
        answered = real(self, effect)
        effects.append(effect)
        if len(effects) == number:
            raise Died
        return answered

    monkeypatch.setattr(Publish, "_answer", answer)
    monkeypatch.setattr(Publish, "_is_aborted", lambda self: True)
    monkeypatch.setattr(publishing, "start_of", lambda pid: 1)  # another process had this number
    return effects


def test_a_publisher_that_dies_leaves_all_or_nothing(session: SparkSession, lake: Lake) -> None:
    """After each of its steps; the next process that writes or looks ends its publish, at either table."""
    with pytest.MonkeyPatch.context() as patch:
        effects = dies_after(patch, 0)
        publish(session, lake, 100)
        steps = len(effects)
    assert steps > 15
    outcomes = []
    for number in range(1, steps + 1):
        with pytest.MonkeyPatch.context() as patch:
            dies_after(patch, number)
            with pytest.raises(Died):
                publish(session, lake, number + 100)
        if number % 2:
            add(session, lake[number // 2 % 2], 1000 + number)
        else:
            lakegate.snapshot(session, lake)
        orders, lines = (number + 100 in ids(session, table) for table in lake)
        assert orders == lines, f"after step {number}"
        outcomes.append(lines)
    assert outcomes == sorted(outcomes), "published from some step on, and not before it"
    assert {*outcomes} == {True, False}
    for table in lake:
        lakegate.snapshot(session, [table])
        assert [name for name in left(table) if name.endswith(".note")] == []


def test_a_publisher_that_was_taken_for_dead_publishes_again(
    session: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped before its intent; another writer has ended its publish, and its rows are there once."""
    monkeypatch.setattr(open_publishes, "QUIET_S", 0.3)
    stopped, goes_on, real = threading.Event(), threading.Event(), Publish._answer

    def answer(self: Publish, effect: Any) -> Any:
        if isinstance(effect, PutIntent) and not stopped.is_set():
            stopped.set()
            goes_on.wait(60)
        return real(self, effect)

    monkeypatch.setattr(Publish, "_answer", answer)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(publish, session, lake, 50)
        assert stopped.wait(60)
        add(session, lake[1], 60)
        assert ids(session, lake[1]) == [*range(10), 60]
        goes_on.set()
        versions = slow.result().versions
    assert ids(session, lake[0]) == [*range(10), 50]
    assert ids(session, lake[1]) == [*range(10), 50, 60]
    assert versions == {lake[0]: 3, lake[1]: 4}


def test_other_writers_wait_for_an_open_publish(
    session: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stock statement with a gate, and one of ours: both come after it."""
    marked, goes_on, real = threading.Event(), threading.Event(), Publish._answer

    def answer(self: Publish, effect: Any) -> Any:
        if isinstance(effect, PutData) and not marked.is_set():
            marked.set()
            goes_on.wait(60)
        return real(self, effect)

    monkeypatch.setattr(Publish, "_answer", answer)
    with ThreadPoolExecutor() as pool:
        made = pool.submit(publish, session, lake, 50)
        assert marked.wait(60)
        stock = pool.submit(session.sql, f"INSERT INTO delta.`{lake[0]}` VALUES (60, 1)")
        time.sleep(1)
        assert not stock.done()
        goes_on.set()
        made.result(), stock.result()
    history = session.sql(f"DESCRIBE HISTORY delta.`{lake[0]}`").collect()
    assert [row.version for row in history if row.operation == "WRITE"] == [3, 2, 0]
    assert ids(session, lake[0]) == [*range(10), 50, 60]


@pytest.mark.parametrize("is_alive", [True, False])
@pytest.mark.every_case
def test_a_writer_without_a_gate_comes_between(
    session: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    """An append is followed by anybody. Another change is followed by the publisher itself; else an error says what to do."""
    real, came = Publish._answer, []

    def answer(self: Publish, effect: Any) -> Any:
        if isinstance(effect, PutData) and effect.table.endswith("lines") and not came:
            came.append(effect)
            foreign_commit(TableLocation(lake[1]), removal(lake[1]))
        return real(self, effect)

    monkeypatch.setattr(Publish, "_answer", answer)
    if is_alive:
        publish(session, lake, 50)
        assert 50 in ids(session, lake[1])
        assert len(ids(session, lake[1])) < 11
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publish, "_put_data", lambda *given: (_ for _ in ()).throw(Died))
        patch.setattr(Publish, "_is_aborted", lambda self: True)
        with pytest.raises(Died):
            publish(session, lake, 50)
    monkeypatch.undo()
    foreign_commit(TableLocation(lake[1]), removal(lake[1]))
    with pytest.raises(Unavailable, match="only the publisher could follow") as raised:
        lakegate.snapshot(session, lake)
    assert raised.value.facts["table"].endswith("lines")
    for table in lake:  # as the error says
        for note in Path(table, "_lakegate", "publish").glob("*.note"):
            assert f"{note.name} from the folders of its tables" in str(raised.value)
            note.unlink()
        add(session, table, 60)
    assert [50 in ids(session, table) for table in lake] == [False, False]
    lakegate.snapshot(session, lake)


def test_an_intent_that_is_older_than_the_log_is_not_finished(
    session: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that cannot be read any more may have been anything."""
    with pytest.MonkeyPatch.context() as patch:
        dies_after(patch, kind=PutData)
        with pytest.raises(Died):
            publish(session, lake, 50)
    log = publisher(session).publishes.log
    real, marker = log.text, 1
    monkeypatch.setattr(log, "text", lambda table, version: None if version > marker - 1 else real(table, version))
    with pytest.raises(Unavailable, match="only the publisher could follow"):
        lakegate.snapshot(session, lake)
    monkeypatch.undo()
    lakegate.snapshot(session, lake)
    assert all(50 in ids(session, table) for table in lake)


def removal(table: str) -> dict[str, Any]:
    """The removal of the table's first file."""
    lines = (Path(table, "_delta_log") / f"{0:020d}.json").read_text().splitlines()
    add = next(json.loads(line)["add"] for line in lines if '"add"' in line)
    return {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}}


def test_readers_never_see_half_of_a_publish(session: SparkSession, lake: Lake) -> None:
    """While publishes are made, versions that `snapshot` gives have the same rows in both tables."""
    done = threading.Event()

    def publish_many() -> None:
        for number in range(20, 32):
            publish(session, lake, number)
        done.set()

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(publish_many)
        seen = []
        while not done.is_set() and not writing.done():
            now = lakegate.snapshot(session, lake)
            orders, lines = (now.read(table).count() for table in lake)
            assert orders == lines
            seen.append(orders)
        writing.result()
    assert len({*seen}) > 2
    assert seen == sorted(seen)


def test_two_publishes_of_the_same_tables_are_both_made(session: SparkSession, lake: Lake) -> None:
    """In two threads, with the tables named in different orders."""
    with ThreadPoolExecutor() as pool:
        one = [pool.submit(publish, session, lake, number) for number in range(20, 24)]
        other = [pool.submit(publish, session, (lake[1], lake[0]), number) for number in range(30, 34)]
        for each in one + other:
            each.result()
    for table in lake:
        assert ids(session, table) == [*range(10), *range(20, 24), *range(30, 34)]


def test_bad_input_is_refused_before_anything_is_written(session: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """By name."""
    orders, lines = lake
    for tables in ([], [orders, orders], [orders, orders + "/"]):
        with pytest.raises(InvalidRequest, match="each once"), lakegate.publish(session, tables):
            pass
    with pytest.raises(InvalidRequest, match="there is no Delta table"):
        lakegate.snapshot(session, [orders, str(tmp_path / "none")])
    with pytest.raises(InvalidRequest, match="second one"), lakegate.publish(session, lake):
        add_both(session, orders, orders)
    with pytest.raises(InvalidRequest, match="does not name"), lakegate.publish(session, [orders]):
        add(session, lines, 10)
    with pytest.raises(InvalidRequest, match="something else"), lakegate.publish(session, lake):
        session.sql(f"INSERT INTO delta.`{orders}` VALUES (60, 1)")
    with pytest.raises(InvalidRequest, match="not in this snapshot"):
        lakegate.snapshot(session, [orders]).read(lines)
    assert ids(session, orders) == ids(session, lines) == list(range(10))


def test_a_damaged_intent_is_reported(session: SparkSession, lake: Lake) -> None:
    """And nothing is written until somebody has looked at it."""
    with pytest.MonkeyPatch.context() as patch:
        dies_after(patch, kind=PutData)
        with pytest.raises(Died):
            publish(session, lake, 50)
    (intent,) = Path(min(lake), "_lakegate", "intents").glob("*.json")
    whole = intent.read_text()
    for text in ("{", '{"format": 1, "participants": [{"table": 1}]}', '{"format": 2}'):
        intent.write_text(text)
        with pytest.raises((Corrupt, InvalidRequest)):
            add(session, lake[1], 60)
    intent.write_text(whole)
    add(session, lake[1], 60)
    assert ids(session, lake[1]) == [*range(10), 50, 60]


def test_a_commit_whose_files_are_gone_is_not_made(session: SparkSession, lake: Lake) -> None:
    """VACUUM has removed them: before the decision nothing is published; after it an error names the file."""

    def vacuumed() -> None:
        known = set(lakegate.DeltaTable.forPath(session, lake[1]).toDF().inputFiles())
        for path in Path(lake[1]).glob("*.parquet"):
            if path.as_uri().replace("file:///", "file:/") not in {
                name.replace("file:///", "file:/") for name in known
            }:
                path.unlink()

    def add_and_vacuum() -> None:
        add_both(session, *lake)
        vacuumed()

    with pytest.raises(InvalidRequest, match="is gone"), lakegate.publish(session, lake):
        add_and_vacuum()
    assert [ids(session, table) for table in lake] == [list(range(10))] * 2
    assert [name for table in lake for name in left(table) if name.endswith(".note")] == []
    with pytest.MonkeyPatch.context() as patch:
        dies_after(patch, kind=PutData)
        with pytest.raises(Died):
            publish(session, lake, 50)
    vacuumed()
    with pytest.raises(InvalidRequest, match="is gone"):
        lakegate.snapshot(session, lake)
    assert ids(session, lake[1]) == list(range(10))


KILLED = """
import os, signal, sys
import lakegate
from lakegate.delta import publish_protocol
from lakegate.rows.publish import Publish

orders, lines, kind, sent = sys.argv[1:]
spark = lakegate.session("killed", conf={"spark.master": "local[1]", "spark.ui.enabled": "false"})
real = Publish._answer

def answer(self, effect):
    if isinstance(effect, getattr(publish_protocol, kind)) and not os.path.exists(orders + ".sent"):
        open(orders + ".sent", "w").close()
        for pid in (spark._jvm.java.lang.ProcessHandle.current().pid(), os.getpid()):
            os.kill(pid, getattr(signal, sent))
    return real(self, effect)

Publish._answer = answer
with lakegate.publish(spark, [orders, lines]) as made:
    for table in (orders, lines):
        lakegate.sql(spark, f"INSERT INTO delta.`{table}` VALUES (77, 1)")
print("published", sorted(made.versions.values()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize(
    ("kind", "is_published"), [("PutMarker", False), ("PutIntent", False), ("PutData", True), ("DropIntent", True)]
)
def test_a_killed_process_leaves_all_or_nothing(
    session: SparkSession, lake: Lake, kind: str, is_published: bool
) -> None:
    """kill -9 of Python and JVM; the next statement of another process ends the publish at once."""
    done = subprocess.run([sys.executable, "-c", KILLED, *lake, kind, "SIGKILL"], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    begun = time.monotonic()
    add(session, lake[1], 60)
    assert time.monotonic() - begun < 20
    assert [77 in ids(session, table) for table in lake] == [is_published, is_published]


@pytest.mark.slow
def test_a_process_that_was_stopped_publishes_once(
    session: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP before its intent: others take it for dead and go on; when it goes on, too, it publishes again."""
    monkeypatch.setattr(open_publishes, "QUIET_S", 1.0)
    command = [sys.executable, "-c", KILLED, *lake, "PutIntent", "SIGSTOP"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        stopped = [*children(process.pid), process.pid]
        try:
            add(session, lake[0], 60)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        output, _ = process.communicate(timeout=120)
    assert output == "published [3, 4]\n"
    assert ids(session, lake[0]) == [*range(10), 60, 77]
    assert ids(session, lake[1]) == [*range(10), 77]


def children(pid: int) -> Iterator[int]:
    """Returns the processes below one, such as its JVM."""
    return (int(each) for each in subprocess.run(
        ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout.split())  # fmt: skip


def test_a_lost_answer_to_the_intent_is_no_failure(
    session: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher reads what was decided."""
    real, failed = Publish._put_intent, []

    def put(self: Publish, participants: Any) -> Any:
        done = real(self, participants)
        return False if not failed.append(1) else done

    monkeypatch.setattr(Publish, "_put_intent", put)
    assert publish(session, lake, 50).versions == {lake[0]: 2, lake[1]: 2}


def test_an_error_after_the_decision_says_so(
    session: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller must not do the work again; the next look finishes it."""

    def fails(*given: Any) -> None:
        raise Unavailable("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publish, "_put_data", fails)
        patch.setattr(publishing, "start_of", lambda pid: 1)
        with pytest.raises(CommitInDoubt, match="is decided, or may be"):
            publish(session, lake, 50)
    lakegate.snapshot(session, lake)
    assert all(50 in ids(session, table) for table in lake)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publish, "_put_marker", fails)
        with pytest.raises(Unavailable, match="no answer"):
            publish(session, lake, 51)
    assert not any(51 in ids(session, table) for table in lake)
    assert [name for table in lake for name in left(table) if name.endswith(".note")] == []


# ------------------------------------------------------------------------------------------------------------- in turns


@pytest.fixture
def job(session: SparkSession, lake: Lake, tmp_path: Path) -> Iterator[lakegate.JobCoordinator]:
    """A job on both tables."""
    made = lakegate.JobCoordinator(session, name="A", lock="L", storage=str(tmp_path / "storage"), tables=list(lake))
    yield made
    made.close()


def test_a_publish_in_a_turn_has_the_turns_token(
    session: SparkSession, lake: Lake, job: lakegate.JobCoordinator
) -> None:
    """If the batch is repeated, it is skipped on both tables."""
    for _ in range(2):
        with job.turn(batch_id=5):
            publish(session, lake, 50)
    assert [ids(session, table) for table in lake] == [[*range(10), 50]] * 2
    for table in lake:
        tokens = [commit_tokens(path.read_text()) for path in commit_paths(TableLocation(table))]
        assert sum("lakegate/job/A" in each for each in tokens) > 1
    more = third(session, lake)
    with job.turn(batch_id=6) as turn:
        with turn.step("first"):
            publish(session, lake, 51)
        with (
            turn.step("second"),
            pytest.raises(InvalidRequest, match="does not name"),
            lakegate.publish(session, [more]),
        ):
            add(session, more, 1)
    assert [ids(session, table) for table in lake] == [[*range(10), 50, 51]] * 2


def third(session: SparkSession, lake: Lake) -> str:
    """A table that the job does not name."""
    table = lake[0] + "-more"
    session.range(1).selectExpr("id", "0 AS v").write.format("delta").mode("ignore").save(table)
    return table


@pytest.mark.parametrize("kind", [PutData, WriteNote, PutMarker, PutIntent, DropIntent])
@pytest.mark.every_case
def test_a_run_that_died_in_its_publish_is_repeated_once(
    session: SparkSession, lake: Lake, job: lakegate.JobCoordinator, kind: type
) -> None:
    """The next turn ends the publish before it enters a table, so the repeated batch finds its token in both, or in none."""
    with pytest.MonkeyPatch.context() as patch:
        dies_after(patch, kind=kind)
        with pytest.raises(Died), job.turn(batch_id=5):
            publish(session, lake, 50)
    for _ in range(2):
        with job.turn(batch_id=5):
            publish(session, lake, 50)
    assert [ids(session, table) for table in lake] == [[*range(10), 50]] * 2


def test_a_publish_is_fenced_by_a_later_turn(
    session: SparkSession, lake: Lake, job: lakegate.JobCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later turn entered the second table while the first one was marked: nothing is published."""
    real = Publish._answer
    later = unpack(2**62).pack()

    def answer(self: Publish, effect: Any) -> Any:
        if isinstance(effect, PutMarker) and effect.table.endswith("orders"):
            foreign_commit(TableLocation(lake[0]), txn("lakegate/job/A", later))
        return real(self, effect)

    monkeypatch.setattr(Publish, "_answer", answer)
    with pytest.raises(Fenced), job.turn(batch_id=5):
        publish(session, lake, 50)
    assert [ids(session, table) for table in lake] == [list(range(10))] * 2
    assert [name for table in lake for name in left(table) if name.endswith(".note")] == []


def test_a_reader_outside_of_turns_finishes_a_publish_of_a_dead_job(
    session: SparkSession, lake: Lake, job: lakegate.JobCoordinator
) -> None:
    """The tables take turns; a decided publish needs none."""
    with pytest.MonkeyPatch.context() as patch:
        dies_after(patch, kind=DropNote)
        patch.setattr(Publish, "_put_data", lambda *given: (_ for _ in ()).throw(Died))
        with pytest.raises(Died), job.turn(batch_id=5):
            publish(session, lake, 50)
    lakegate.snapshot(session, lake)
    assert [ids(session, table) for table in lake] == [[*range(10), 50]] * 2


def test_a_function_of_a_stream_publishes(
    session: SparkSession, lake: Lake, job: lakegate.JobCoordinator, tmp_path: Path
) -> None:
    """Each micro-batch has one publish, with the token of the batch."""

    def write(batch: DataFrame, batch_id: int) -> None:
        publish(batch.sparkSession, lake, 100 + batch_id)

    def query() -> DataStreamWriter:
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = rows.writeStream.foreachBatch(lakegate.coordinated(write, job))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    for _ in range(2):
        lakegate.supervise(query, job, once=True)
    orders, lines = (ids(session, table) for table in lake)
    assert orders == lines == [*range(10), *range(100, 90 + len(orders))]
    assert len(orders) > 11


def test_a_table_that_takes_turns_is_published_in_its_turn_alone(session: SparkSession, lake: Lake) -> None:
    """Nothing is published, although the other table takes none."""
    gate, governed = Gate(session), TableLocation(lake[0])
    gate.govern(governed)
    try:
        with pytest.raises(TurnNotGranted, match="was refused"):
            publish(session, lake, 50)
    finally:
        gate.release(governed)
    assert [ids(session, table) for table in lake] == [list(range(10))] * 2
    assert left(lake[0]) == left(lake[1]) == []


def test_one_publish_in_another_is_refused(session: SparkSession, lake: Lake) -> None:
    """Neither is made."""
    with pytest.raises(InvalidRequest, match="within another"), lakegate.publish(session, [lake[0]]):
        publish(session, lake, 50)
    assert ids(session, lake[0]) == list(range(10))
