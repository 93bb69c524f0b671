"""Tokens and commits in the logs of real Delta tables."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.clientserver import JavaClient
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from lakegate.api import JobCoordinator
from lakegate.delta import commit as exact
from lakegate.delta import jvm as jvm_module
from lakegate.delta import table_log as log_module
from lakegate.delta.actions import Action
from lakegate.delta.commit_file import commit_info
from lakegate.delta.gate import Gate
from lakegate.delta.idempotent_writes import append, tokened
from lakegate.delta.jvm import DELTA, JVM_ERRORS, Jvm, check_jvm, first_line
from lakegate.delta.post_commit import Work
from lakegate.delta.table_log import DeltaTableLog, LogGone
from lakegate.errors import InvalidRequest, MissingExtra, Unavailable, UnsupportedTable
from lakegate.ids import Epoch, TableLocation, Version
from lakegate.rows import sql
from lakegate.rows.committer import publisher
from lakegate.turns.protocol.effects import StepMark
from lakegate.turns.protocol.fencing import Token, lock_token, query_token
from tests.delta.delta_tables import (
    QUERY,
    commit_paths,
    foreign_commit,
    ids,
    make_table,
    number,
    rows,
    txn,
    write_token,
)

ENTRY = '{"lakegate":1,"epoch":2,"batch":null,"step":"entry","offsets":null}'
LOCK = lock_token("L")


@pytest.fixture(scope="module")
def log(session: SparkSession) -> DeltaTableLog:
    """Makes one reader for all tests: each test has a table of its own."""
    return DeltaTableLog(session)


class Raced(DeltaTableLog):
    """Another writer commits between the snapshot of an entry commit and the commit."""

    earlier: Callable[[], object]

    def _commit(self, *args: Any) -> Any:
        self.earlier()
        return super()._commit(*args)


class FaultyLog(DeltaTableLog):
    """The call of an entry commit fails: before it reaches Delta, or with its answer."""

    is_made: bool
    earlier: Callable[[], object] | None = None
    error: Exception = Py4JNetworkError("the answer was lost")

    def _commit(self, jvm: Jvm, *args: Any) -> Any:
        outer = self

        class FaultyJvm:
            def __getattr__(self, name: str) -> Any:
                return getattr(jvm, name)

            def commit(self, *args: Any, **named: Any) -> Any:
                if outer.earlier is not None:
                    outer.earlier()
                if outer.is_made:
                    jvm.commit(*args, **named)
                raise outer.error

        return super()._commit(cast("Any", FaultyJvm()), *args)


def raised(epoch: int, batch: int = -1) -> tuple[tuple[Any, int], ...]:
    return ((QUERY, number(epoch, batch)), (LOCK, number(epoch, -1)))


def is_made(tried: exact.Tried | exact.NotNext) -> bool:
    return isinstance(tried, exact.Tried) and tried.reply == "done"


def test_where_there_is_no_table_the_version_is_minus_one(log: DeltaTableLog, tmp_path: Path) -> None:
    """A path that does not exist and a folder without a log are no tables, and are not made one by looking."""
    absent = TableLocation(str(tmp_path / "absent"))
    for table in (absent, TableLocation(str(tmp_path))):
        reading = log.read_tokens(table)
        assert (reading.version, dict(reading.tokens)) == (-1, {})
    assert not Path(absent).exists()


def test_an_entry_commit_sets_all_numbers_and_nothing_else(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """One commit at exactly the next version, without files; ids of other writers are not among the tokens."""
    table = make_table(session, tmp_path / "t")
    foreign_commit(table, txn("stream-of-somebody", 7), txn("lakegate/other", number(1, 3)))
    assert log.commit_entry(table, Version(1), raised(2, 5), ENTRY) == "done"
    reading = log.read_tokens(table)
    assert reading.version == 2
    assert dict(reading.tokens) == {"lakegate/other": number(1, 3), **dict(raised(2, 5))}
    (commit,) = log.commits(table, Version(1), Version(2))
    assert (commit.added, commit.removed, dict(commit.tokens)) == ((), (), dict(raised(2, 5)))
    assert commit.user_metadata == json.loads(ENTRY)


def test_a_commit_is_a_few_calls_of_the_jvm(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more statements than cores each call waits for a core; they are as many for many actions as for one."""
    table = make_table(session, tmp_path / "t")
    jvm = exact.private(session)
    log = jvm.delta_log(table)
    calls: list[str] = []
    send = JavaClient.send_command

    def counted(client: JavaClient, command: str, *more: Any, **named: Any) -> Any:
        if not command.startswith("m\n"):  # what Python does not need any more is freed at any time
            calls.append(command)
        return send(client, command, *more, **named)

    for size in (1, 1, 50):  # what is found once is remembered
        version = Version(jvm.snapshot(log).version() + 1)
        transactions = [Action("txn", {"appId": f"a{i}", "version": 1}) for i in range(size)]
        calls.clear()
        with monkeypatch.context() as patched:
            patched.setattr(JavaClient, "send_command", counted)
            assert is_made(exact.commit(jvm, log, version, transactions))
    assert len(calls) <= 1, calls


def test_what_fails_before_the_put_leaves_no_doubt(session: SparkSession, tmp_path: Path) -> None:
    """It is raised as it is; a commit that fails may have been made, and is looked for in the log."""
    table = make_table(session, tmp_path / "t")
    jvm = exact.private(session)
    with pytest.raises(JVM_ERRORS) as raised:
        exact.commit(jvm, jvm.delta_log(table), Version(1), [Action("txn", {"appId": "x", "version": "one"})])
    assert first_line(raised.value).startswith("com.fasterxml.jackson.databind.exc.InvalidFormatException")
    assert len(commit_paths(table)) == 1


def test_a_commit_that_was_asked_for_twice_is_known_by_its_id(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Py4J sends a call again when the connection ended before the answer: the second finds the commit of the first."""
    table = make_table(session, tmp_path / "t")
    jvm, once = exact.private(session), Jvm.commit

    def sent_twice(*given: Any, **more: Any) -> Any:
        once(*given, **more)
        return once(*given, **more)

    monkeypatch.setattr(Jvm, "commit", sent_twice)
    found = exact.commit(jvm, jvm.delta_log(table), Version(1), [Action("txn", {"appId": "x", "version": 1})])
    assert found == exact.Tried("done", commit_info(commit_paths(table)[-1].read_text())["txnId"])
    assert len(commit_paths(table)) == 2
    assert DeltaTableLog(session).commit_entry(table, Version(1), raised(2), ENTRY) == "done"
    assert len(commit_paths(table)) == 3


def test_a_statement_whose_commit_was_requested_twice_is_committed_once(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds its own commit, and does not follow it as another's."""
    table = make_table(session, tmp_path / "t")
    dml = sql.statement(session, f"INSERT INTO delta.`{table}` VALUES (7, 'a')")
    assert dml is not None
    staged, once, asked = publisher(session).stage(dml), Jvm.commit, list[Any]()

    def sent_twice(*given: Any, **more: Any) -> Any:
        asked.append(more)
        if len(asked) == 1:
            once(*given, **more)
        return once(*given, **more)

    monkeypatch.setattr(Jvm, "commit", sent_twice)
    assert publisher(session).finish(staged).version == 1
    assert len(asked) == 1
    assert ids(session, table) == [7]


def test_what_delta_refuses_of_an_entry_was_not_written(session: SparkSession, tmp_path: Path) -> None:
    """Delta raised, and no commit has the version: this is not a lost answer."""
    table, gate = make_table(session, tmp_path / "t"), Gate(session)
    gate.govern(table)
    try:
        with pytest.raises(Unavailable, match=r"entry commit failed.*nobody has the turn"):
            DeltaTableLog(session).commit_entry(table, Version(0), raised(2), ENTRY)
    finally:
        gate.release(table)
    assert len(commit_paths(table)) == 1


def test_a_checkpoint_and_what_delta_works_out_for_it_wait_until_the_commit_is_made(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """The commit runs no Spark job although a checkpoint is due; the checkpoint is written with the deferred work."""
    table = make_table(session, tmp_path / "t", checkpointInterval="2")
    jvm = exact.private(session)
    log = jvm.delta_log(table)
    left: list[Work] = []
    for version in (1, 2):
        jvm.snapshot(log)
        ids = [Action("txn", {"appId": "x", "version": version})]
        assert jobs(lambda v=Version(version), a=ids: exact.commit(jvm, log, v, a, later=left.append)) == 0
    jvm.snapshot(log)
    assert is_made(exact.commit(jvm, log, Version(3), ids, later=left.append))
    folder = Path(table, "_delta_log")
    assert not list(folder.glob("*.checkpoint*.parquet"))
    (checkpoint,) = [more for work in left if (more := work()) is not None]
    assert not list(folder.glob("*.checkpoint*.parquet"))
    assert (folder / f"{3:020}.crc").exists(), "no checksum waits for a checkpoint"
    checkpoint()
    (made,) = folder.glob("*.checkpoint*.parquet")
    assert made.name.startswith(f"{2:020}.checkpoint")
    assert json.loads(Path(table, "_delta_log", "_last_checkpoint").read_text())["version"] == 2
    assert DeltaTableLog(session).read_tokens(table).version == 3


def test_an_entry_waits_for_no_entry_of_another_table(session: SparkSession, tmp_path: Path) -> None:
    """A turn enters its tables side by side."""
    tables = [make_table(session, tmp_path / name) for name in ("a", "b")]
    raced = Raced(session)
    both = threading.Barrier(2, timeout=60)
    raced.earlier = both.wait
    with ThreadPoolExecutor(2) as pool:
        replies = pool.map(lambda table: raced.commit_entry(table, Version(0), raised(1), ENTRY), tables)
        assert list(replies) == ["done", "done"]


def test_a_commit_of_another_process_is_seen_at_once(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """Every reading is fresh, though nothing in this JVM made the commit."""
    table = make_table(session, tmp_path / "t")
    for batch in range(3):
        foreign_commit(table, txn(QUERY, number(1, batch)))
        reading = log.read_tokens(table)
        assert (reading.version, reading.tokens[QUERY]) == (batch + 1, number(1, batch))


@pytest.mark.parametrize("earlier", ["token only", "append", "delete", "properties", "several"])
def test_an_entry_commit_that_lost_its_version_leaves_nothing(
    session: SparkSession, tmp_path: Path, earlier: str
) -> None:
    """For any winning commit, the answer is "stale" and that commit is the newest version: an entry is never rebased."""
    table = make_table(session, tmp_path / "t")
    append(rows(session, 1), table, write_token(1, 0))
    path = f"delta.`{table}`"
    winners: dict[str, Callable[[], object]] = {
        "token only": lambda: foreign_commit(table, txn(QUERY, number(3, 0))),
        "append": lambda: rows(session, 2).write.format("delta").mode("append").save(table),
        "delete": lambda: session.sql(f"DELETE FROM {path}"),
        "properties": lambda: session.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('a' = 'b')"),
        "several": lambda: [foreign_commit(table, txn("x", i)) for i in range(3)],
    }
    raced = Raced(session)
    raced.earlier = winners[earlier]
    assert raced.commit_entry(table, Version(1), raised(2, 0), ENTRY) == "stale"
    assert raced.head(table) == (4 if earlier == "several" else 2)
    assert LOCK not in raced.read_tokens(table).tokens


def test_an_entry_commit_for_an_old_version_is_stale(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """A reading that others have overtaken is not committed on."""
    table = make_table(session, tmp_path / "t")
    foreign_commit(table, txn("x", 1))
    assert log.commit_entry(table, Version(0), raised(2), ENTRY) == "stale"
    assert log.head(table) == 1


def test_a_lost_answer_is_found_out(session: SparkSession, tmp_path: Path) -> None:
    """The commit was made, only its answer was lost: our transaction's id at that version says so."""
    table = make_table(session, tmp_path / "t")
    faulty = FaultyLog(session)
    faulty.is_made = True
    assert faulty.commit_entry(table, Version(0), raised(2), ENTRY) == "done"
    assert faulty.read_tokens(table).tokens[QUERY] == number(2, -1)


@pytest.mark.parametrize("error", [Py4JNetworkError("the answer was lost"), Py4JError("An error occurred"), OSError()])
def test_a_lost_request_is_no_success(session: SparkSession, tmp_path: Path, error: Exception) -> None:
    """The commit was not made: another's at that version means stale, and none there nothing: it may be under way."""
    table = make_table(session, tmp_path / "t")
    faulty = FaultyLog(session)
    faulty.is_made, faulty.error = False, error
    assert faulty.commit_entry(table, Version(0), raised(2), ENTRY) == "unknown"
    faulty.earlier = lambda: foreign_commit(table, txn("x", 1))
    assert faulty.commit_entry(table, Version(0), raised(2), ENTRY) == "stale"


@pytest.mark.also_without_caches
def test_an_entry_commit_is_a_compare_and_set_in_every_thread(session: SparkSession, tmp_path: Path) -> None:
    """A thread's own active session, whose settings would have the commit rebased, is not used, and stays active."""
    table = make_table(session, tmp_path / "t")
    raced = Raced(session)
    raced.earlier = lambda: foreign_commit(table, txn("x", 1))
    sessions = Jvm(session).root.org.apache.spark.sql.classic.SparkSession
    found: list[object] = []

    def in_a_thread_without_a_session() -> None:
        sessions.clearActiveSession()
        found.append(raced.commit_entry(table, Version(0), raised(2), ENTRY))
        found.append(sessions.getActiveSession().isDefined())

    def in_a_thread_of_another_session() -> None:
        sessions.setActiveSession(session._jsparkSession)
        found.append(raced.commit_entry(table, Version(1), raised(2), ENTRY))
        found.append(sessions.getActiveSession().get().equals(session._jsparkSession))

    for work in (in_a_thread_without_a_session, in_a_thread_of_another_session):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == ["stale", False, "stale", True]
    assert raced.head(table) == 2


@pytest.mark.also_without_caches
def test_after_an_entry_commit_the_earlier_turn_writes_nothing(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """Delta skips, without a word, every statement of the turn before; the token read afterwards shows why."""
    table = make_table(session, tmp_path / "t")
    append(rows(session, 1, 2), table, write_token(1, 0))
    assert log.commit_entry(table, Version(1), raised(2, 0), ENTRY) == "done"
    path = f"delta.`{table}`"
    append(rows(session, 3), table, write_token(1, 1))
    rows(session, 1, 4).createOrReplaceTempView("zombie_source")
    for statement in (
        f"DELETE FROM {path} WHERE id = 1",
        f"UPDATE {path} SET v = 'z'",
        f"MERGE INTO {path} t USING zombie_source s ON t.id = s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *",
    ):
        with tokened(session, write_token(1, 1)):
            session.sql(statement)
    assert log.head(table) == 2
    assert log.read_tokens(table).tokens[QUERY] == number(2, 0)
    append(rows(session, 5), table, write_token(2, 1))
    assert ids(session, table) == [1, 2, 5]


@pytest.mark.slow
def test_commits_tell_what_each_operation_did(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """Operation, token, metadata, files, and whether data changed, for every kind of statement."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    path = f"delta.`{table}`"
    append(rows(session, 1, 2, 3), table, write_token(1, 0))
    rows(session, 2, 9, v="m").createOrReplaceTempView("merge_source")
    for batch, statement in enumerate(
        (
            f"UPDATE {path} SET v = 'u' WHERE id = 1",
            f"DELETE FROM {path} WHERE id = 3",
            f"MERGE INTO {path} t USING merge_source s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        ),
        start=1,
    ):
        with tokened(session, write_token(1, batch)):
            session.sql(statement)
    session.sql(f"OPTIMIZE {path}")
    session.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('a' = 'b')")
    commits = log.commits(table, Version(-1), log.head(table))
    assert [commit.version for commit in commits] == list(range(7))
    create, write, update, delete, merge, optimize, alter = commits
    assert [commit.operation for commit in commits] == [
        *("CREATE TABLE", "WRITE", "UPDATE", "DELETE", "MERGE", "OPTIMIZE", "SET TBLPROPERTIES")
    ]
    for batch, commit in enumerate((write, update, delete, merge)):
        assert dict(commit.tokens) == {QUERY: number(1, batch)}
        assert commit.is_lakegate
        assert commit.user_metadata == json.loads(write_token(1, batch).user_metadata)
        assert all(file.is_data_change for file in (*commit.added, *commit.removed))
    assert not any(commit.is_lakegate or commit.tokens for commit in (create, optimize, alter))
    assert [commit.is_metadata_change for commit in commits] == [True, *[False] * 5, True]
    assert write.timestamp_ms > 0
    assert write.metrics["numOutputRows"] == "3"
    (added,) = write.added
    assert (added.records, added.deleted_records) == (3, 0)
    (marked,) = delete.added
    assert marked.path == added.path
    assert marked.deleted_records == 2
    assert [file.path for file in delete.removed] == [added.path]
    assert optimize.added
    assert not any(file.is_data_change for file in (*optimize.added, *optimize.removed))


@pytest.mark.also_without_caches
@pytest.mark.slow
def test_tokens_survive_checkpoints_and_the_cleaning_of_the_log(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """A reader that starts afresh, and one whose remembered version is gone, both find every token."""
    table = make_table(session, tmp_path / "t", checkpointInterval="2")
    append(rows(session, 1), table, write_token(1, 0))
    behind = DeltaTableLog(session)
    assert behind.read_tokens(table).version == 1
    other = query_token("other")
    for batch in range(3):
        append(rows(session, batch), table, write_token(1, batch, token_id=other))
    for path in commit_paths(table)[:4]:
        path.unlink()
        path.with_suffix(".crc").unlink(missing_ok=True)
    assert [path.stem for path in commit_paths(table)] == [f"{4:020d}"]
    for reader in (behind, DeltaTableLog(session), log):
        reading = reader.read_tokens(table)
        assert reading.version == 4
        assert dict(reading.tokens) == {QUERY: number(1, 0), other: number(1, 2)}
    with pytest.raises(LogGone):
        log.commits(table, Version(1), Version(4))
    assert log.find_mark(table, QUERY, Token(epoch=Epoch(9), batch=0)) is None


@pytest.mark.parametrize("versions", [1, 3])
def test_a_recreated_table_has_none_of_the_old_tokens(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path, versions: int
) -> None:
    """Dropped and made again at the same path, whether it has reached the remembered version again or not."""
    table = make_table(session, tmp_path / "t")
    foreign_commit(table, txn(QUERY, number(1, 0)))
    assert log.read_tokens(table).tokens
    shutil.rmtree(table)
    assert log.head(table) == -1
    make_table(session, tmp_path / "t")
    foreign_commit(table, txn(QUERY, number(1, 0)))
    assert log.read_tokens(table).version == 1
    shutil.rmtree(table)
    make_table(session, tmp_path / "t")
    for _ in range(versions):
        foreign_commit(table, txn("x", 1))
    reading = log.read_tokens(table)
    assert (reading.version, dict(reading.tokens)) == (versions, {})
    assert [dict(commit.tokens) for commit in log.commits(table, Version(0), reading.version)] == [{}] * versions


def test_commits_that_came_with_the_head_are_not_read_again(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """A turn asks for the same ones several times. Those before the head was first looked for, and long ones, are read."""
    table = make_table(session, tmp_path / "t")
    for batch in range(2):
        append(rows(session, batch), table, write_token(1, batch))
        log.head(table)
    foreign_commit(table, txn("long", 1), *(txn(f"application-{n}", n) for n in range(2000)))
    foreign_commit(table, txn("last", 1))
    assert log.head(table) == 4
    paths = commit_paths(table)
    paths[2].unlink()
    known = log.commits(table, Version(0), Version(4))
    assert [(commit.version, commit.operation) for commit in known[:2]] == [(1, "WRITE"), (2, "WRITE")]
    assert [dict(commit.tokens) for commit in known[:2]] == [{QUERY: number(1, 0)}, {QUERY: number(1, 1)}]
    with pytest.raises(LogGone):
        DeltaTableLog(session).commits(table, Version(0), Version(4))
    assert paths[3].stat().st_size > 2**16
    paths[3].unlink()
    with pytest.raises(LogGone):
        log.commits(table, Version(2), Version(4))


@pytest.mark.parametrize("is_the_same", [True, False], ids=["the table", "another table of the same path"])
def test_a_commit_that_was_put_here_is_not_read_back(session: SparkSession, tmp_path: Path, is_the_same: bool) -> None:
    """A turn asks for it at once. While the file of the commit before is unchanged, no other writer can have put that version; in a
    recreated table another writer may have.
    """
    table, log = make_table(session, tmp_path / "t"), DeltaTableLog(session)
    assert log.head(table) == 0
    append(rows(session, 1), table, write_token(1, 0))
    first, last = commit_paths(table)
    put, other = str(number(1, 0)), str(number(1, 1))
    assert (len(put), put in last.read_text()) == (len(other), True)
    last.write_text(last.read_text().replace(put, other))
    if not is_the_same:
        os.utime(first, (1, 1))
    for reader in (log, DeltaTableLog(session)):  # once listed behind a known one, it is known to all by its time
        assert reader.read_tokens(table).tokens == {QUERY: number(1, 0) if is_the_same else number(1, 1)}
        text = Jvm(session).texts_after(Jvm(session).delta_log(table), 0)
        assert text is not None
        assert (put in text[1]) == is_the_same
    os.utime(last, (1, 1))
    again = Jvm(session).texts_after(Jvm(session).delta_log(table), 0)
    assert again is not None
    assert other in again[1]


@pytest.mark.parametrize("length", [1, 5000, 20_000, 20_001, 20_002, 301_000])
def test_long_answers_come_whole(session: SparkSession, tmp_path: Path, length: int) -> None:
    """Packed, as py4j waits within one of more than 8 KiB."""
    table, jvm = make_table(session, tmp_path / "t"), Jvm(session)
    foreign_commit(table, txn("x" * (length % 10) + "\U0001f511ä" * (length // 3), 1))
    path = commit_paths(table)[1]
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions), encoding="utf-8")
    assert jvm.texts_after(jvm.delta_log(table), 0) == {0: "", 1: path.read_text(encoding="utf-8")}


def test_no_part_of_a_long_answer_is_kept(session: SparkSession, tmp_path: Path) -> None:
    """What is kept by the JVM for the next call is gone with it; lines of a log, packed, seldom need one."""
    table, jvm = make_table(session, tmp_path / "t"), Jvm(session)
    calls: list[int] = []
    parts = jvm._parts

    class Counted:
        def next(self, number: int) -> str:
            calls.append(number)
            return str(parts.next(number))

    jvm._parts = Counted()
    for version in range(1, 31):
        foreign_commit(table, txn(uuid.uuid4().hex, version), txn(uuid.uuid4().hex, version))
    whole = {version: commit_paths(table)[version].read_text() for version in range(1, 31)}
    assert sum(map(len, whole.values())) > 5_000
    assert jvm.texts_after(jvm.delta_log(table), 0) == {0: "", **whole}
    assert not calls
    foreign_commit(table, txn(base64.b85encode(random.Random(1).randbytes(32_000)).decode(), 1))
    assert jvm.texts_after(jvm.delta_log(table), 30) == {30: "", 31: commit_paths(table)[31].read_text()}
    assert len(calls) >= 4, "what cannot be packed comes in parts"
    assert [parts.next(number) for number in calls] == [None] * len(calls)


@pytest.mark.slow
def test_a_prepared_write_is_spared_the_look_at_its_token(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """Delta's snapshot answers as Delta would have found out, ids of other writers included, and no job is run for it."""
    table = make_table(session, tmp_path / "t")
    jvm, one = Jvm(session), rows(session, 1)
    append(one, table, write_token(1, 0))
    for round_ in range(3):
        foreign_commit(table, txn("stream-of-somebody", 2**40 + round_), txn(f"other-{round_}", 1))
        if round_ < 2:
            log.read_tokens(table)
            log.prepare_write(table)
        looking = jobs(lambda: append(one, table, write_token(1, 0)))  # it is there: Delta looks, and writes nothing
        assert (looking > 0) == (round_ == 2)
        snapshot = jvm.snapshot(jvm.delta_log(table))
        by_delta = {action.appId(): action.version() for action in jvm.from_seq(snapshot.setTransactions())}
        assert jvm.from_map(snapshot.transactions()) == by_delta
        assert len(by_delta) == round_ + 3
        append(one, table, write_token(1, round_ + 1))
        append(one, table, write_token(1, 0))
        assert log.head(table) == 2 * round_ + 3


@pytest.mark.slow
def test_the_size_of_a_table_after_our_commit_needs_no_spark_job(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """Every reader of a version asks for the size, and Delta would compute the state for it, also after a turn's entry."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    jvm = Jvm(session)
    delta_log = jvm.delta_log(table)
    said = []
    for count, text in enumerate(
        [
            f"INSERT INTO delta.`{table}` VALUES (1, 'a'), (2, 'b'), (3, 'c')",
            f"INSERT INTO delta.`{table}` VALUES (4, 'd')",
            f"DELETE FROM delta.`{table}` WHERE id = 2",
            f"UPDATE delta.`{table}` SET v = 'x' WHERE id > 2",
            f"DELETE FROM delta.`{table}`",
        ]
    ):
        dml = sql.statement(session, text)
        assert dml is not None
        publisher(session).finish(publisher(session).stage(dml))
        assert log.commit_entry(table, log.head(table), ((QUERY, number(count + 1, 0)),), ENTRY) == "done"
        snapshot = delta_log.unsafeVolatileSnapshot()
        assert jobs(lambda snapshot=snapshot: said.append((snapshot.sizeInBytes(), snapshot.numOfFiles()))) == 0
        sizes = {}
        for path in commit_paths(table):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            for removed in (action["remove"]["path"] for action in actions if "remove" in action):
                sizes.pop(removed)
            sizes |= {action["add"]["path"]: action["add"]["size"] for action in actions if "add" in action}
        assert said[-1] == (sum(sizes.values()), len(sizes))
    assert len(set(said)) == 4, "a row that is marked takes no bytes away"


def test_a_short_log_is_read_without_a_job_and_a_long_one_as_delta_does(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways give the same ids."""
    table = make_table(session, tmp_path / "t")
    for batch in range(3):
        append(rows(session, batch), table, write_token(1, batch))
    found = []
    for longest, has_job in ((3, False), (2, True)):
        monkeypatch.setattr(log_module, "WHOLE_LOG_MAX", longest)
        reader = DeltaTableLog(session)
        assert (jobs(lambda reader=reader: found.append(reader.read_tokens(table))) > 0) == has_job
    assert found[0] == found[1]
    assert found[0].tokens[QUERY] == number(1, 2)


@pytest.mark.parametrize("why", ["another commit", "recreated", "ids expire", "never read"])
def test_what_the_log_does_not_know_delta_finds_out(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path, why: str
) -> None:
    """A snapshot of another commit, or with rules of its own, is given nothing."""
    expire = {"setTransactionRetentionDuration": "interval 1 hours"} if why == "ids expire" else {}
    table = make_table(session, tmp_path / "t", **expire)
    if why != "never read":
        log.read_tokens(table)
    foreign_commit(table, txn("x", 1))
    if why != "never read":
        log.read_tokens(table)
    if why == "another commit":
        foreign_commit(table, txn("x", 2))
    if why == "recreated":
        shutil.rmtree(table)
        make_table(session, tmp_path / "t")
        foreign_commit(table, txn("y", 2))
    log.prepare_write(table)
    jvm = Jvm(session)
    own = jvm.snapshot(jvm.delta_log(table))
    found = {action.appId(): action.version() for action in jvm.from_seq(own.setTransactions())}
    assert jvm.from_map(own.transactions()) == found
    assert found == {"another commit": {"x": 2}, "recreated": {"y": 2}, "ids expire": {}}.get(why, {"x": 1})


@pytest.mark.also_without_caches
def test_all_of_it_holds_on_a_table_with_every_feature_and_an_odd_path(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """Column mapping, in-commit timestamps, row tracking, change feed, deletion vectors; blanks and `%` in the path."""
    table = make_table(
        session,
        tmp_path / "sp ace%20é'q" / "t",
        checkpointInterval="2",
        enableDeletionVectors="true",
        enableChangeDataFeed="true",
        enableRowTracking="true",
        enableInCommitTimestamps="true",
        **{"columnMapping.mode": "name"},
    )
    append(rows(session, 1, 2), table, write_token(1, 0))
    assert log.commit_entry(table, Version(1), raised(2, 0), ENTRY) == "done"
    with tokened(session, write_token(2, 1)):
        session.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    reading = DeltaTableLog(session).read_tokens(table)
    assert (reading.version, reading.tokens[QUERY]) == (3, number(2, 1))
    commits = log.commits(table, Version(0), Version(3))
    stamps = [
        json.loads(path.read_text().split("\n")[0])["commitInfo"]["inCommitTimestamp"] for path in commit_paths(table)
    ]
    assert [commit.timestamp_ms for commit in commits] == stamps[1:]
    paths = [file.path for file in commits[0].added]
    assert [row.id for row in log.read_at(session, table, Version(3), paths).collect()] == [2]
    assert sorted(row.id for row in log.read_at(session, table, Version(2), paths).collect()) == [1, 2]
    metadata = log.metadata(table)
    assert metadata.schema.fieldNames() == ["id", "v"]
    assert metadata.properties["delta.columnMapping.mode"] == "name"
    assert {"columnMapping", "deletionVectors", "inCommitTimestamp", "rowTracking"} <= metadata.features


@pytest.mark.slow
def test_rows_are_read_from_the_files_that_are_asked_for(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned to a version, deletion vectors applied, by the last commits or by the whole state; absent files are refused."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    append(rows(session, 1, 2), table, write_token(1, 0))
    append(rows(session, 3), table, write_token(1, 1))
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 2")
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    first, second = (commit.added[0].path for commit in log.commits(table, Version(0), Version(2)))
    for recent_max in (log_module.RECENT_MAX, 0):
        monkeypatch.setattr(log_module, "RECENT_MAX", recent_max)
        assert [row.id for row in log.read_at(session, table, Version(4), [first]).collect()] == [1]
        with pytest.raises(InvalidRequest, match="does not have"):
            log.read_at(session, table, Version(4), [first, second])
    assert sorted(row.id for row in log.read_at(session, table, Version(2)).collect()) == [1, 2, 3]


def test_a_step_is_found_by_its_mark_at_any_epoch(session: SparkSession, log: DeltaTableLog, tmp_path: Path) -> None:
    """Entry commits, which repeat batch and step at a higher epoch, are passed over; what is not there is not invented."""
    table = make_table(session, tmp_path / "t")
    for batch, step, name in ((0, 0, "store"), (0, 2, "settle"), (1, 0, "store")):
        token = write_token(1, batch, step, name=name)
        foreign_commit(table, txn(QUERY, token.number), user_metadata=token.user_metadata)
    foreign_commit(table, txn(QUERY, number(2, 1)), user_metadata=ENTRY)
    foreign_commit(table, txn("lakegate/other", number(2, 1)), user_metadata=write_token(2, 1).user_metadata)

    def mark(batch: int, step: int) -> StepMark | None:
        return log.find_mark(table, QUERY, Token(epoch=Epoch(5), batch=batch, step=step))

    assert mark(1, 0) == StepMark(name="store", offsets_sha256="sha-1")
    assert mark(0, 2) == StepMark(name="settle", offsets_sha256="sha-0")
    assert mark(0, 0) == StepMark(name="store", offsets_sha256="sha-0")
    assert mark(0, 1) is None
    assert mark(2, 0) is None


def test_a_table_whose_commits_a_catalog_makes_is_refused(
    session: SparkSession, log: DeltaTableLog, tmp_path: Path
) -> None:
    """Its log's folder may lack commits, so a token read from there could be old."""
    table = make_table(session, tmp_path / "t")
    assert log.head(table) == 0
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"]}
    foreign_commit(table, {"protocol": {**protocol, "writerFeatures": ["catalogManaged"]}})
    with pytest.raises(UnsupportedTable, match="catalogManaged"):
        log.read_tokens(table)


def test_without_a_part_of_delta_that_the_caches_call_they_are_off(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release of Delta that changes an internal part makes commits slower, and stops nothing."""
    caches = session._jvm.io.github.lakegate.caches.Caches  # type: ignore[union-attr]
    monkeypatch.setattr(jvm_module, "NEEDED_BY_CACHES", {f"{DELTA}.Snapshot": ("laterOnly/0",)})
    try:
        check_jvm(session)
        assert not caches.isOn()
        assert f"{DELTA}.Snapshot.laterOnly/0" in caplog.text
        monkeypatch.setattr(session.sparkContext._conf, "get", lambda key, default: "maybe")
        monkeypatch.setattr(session.sparkContext, "getConf", lambda: session.sparkContext._conf)
        with pytest.raises(InvalidRequest, match=r"spark\.lakegate\.deltaCaches is on or off, not 'maybe'"):
            check_jvm(session)
    finally:
        monkeypatch.undo()
        check_jvm(session)
    assert caches.isOn()


def test_another_delta_is_noticed_at_the_start(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Lakegate calls is looked up by name and number of parameters; no Delta at all is said to be just that."""
    check_jvm(session)
    monkeypatch.setattr(jvm_module, "NEEDED", {f"{DELTA}.DeltaLog": ("update/17",), "no.such.Class": ()})
    with pytest.raises(UnsupportedTable, match=r"DeltaLog\.update/17, no\.such\.Class"):
        check_jvm(session)
    monkeypatch.setattr(jvm_module, "NEEDED", {})
    monkeypatch.setattr(jvm_module, "OURS_NEEDED", {"io.github.lakegate.Later": ()})
    with pytest.raises(MissingExtra, match="without Lakegate's jar, or with that of another version"):
        JobCoordinator(session, name="A", lock="L", storage=str(tmp_path / "storage"), tables=[str(tmp_path / "t")])
    assert not (tmp_path / "storage").exists()
    monkeypatch.setattr(jvm_module, "OURS_NEEDED", {})
    monkeypatch.setattr(jvm_module, "DELTA", "nowhere")
    monkeypatch.setattr(jvm_module, "NEEDED", {"nowhere.DeltaLog": ()})
    with pytest.raises(MissingExtra, match="without Delta"):
        check_jvm(session)
