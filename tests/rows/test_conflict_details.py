"""A statement that fails because another commit came first says which, that nothing was written, and what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta import commit as exact
from lakegate.delta.gate import JOB_CONF, WAIT_CONF, Gate
from lakegate.delta.idempotent_writes import conflict_name, confs, tokened
from lakegate.delta.jvm import JVM_ERRORS, Jvm
from lakegate.delta.table_log import LogGone
from lakegate.errors import CommitInDoubt, InvalidRequest, LakegateError, UnsupportedTable
from lakegate.ids import TableLocation
from lakegate.rows import execution
from lakegate.rows.commit_attempt import CommitAttempt
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.result import on_statement
from lakegate.rows.sql import statement
from lakegate.telemetry.events import StatementPublished
from tests.delta.delta_tables import commit_paths, foreign_commit, ids, make_table, rows, write_token
from tests.waiting import wait_until, waits_for

MAPPED = {"enableDeletionVectors": "true", "columnMapping.mode": "name"}


@pytest.fixture
def table(session: SparkSession, tmp_path: Path) -> TableLocation:
    """Three rows; columns may be dropped."""
    made = make_table(session, tmp_path / "t", **MAPPED)
    rows(session, 0, 1, 2).write.format("delta").mode("append").save(made)
    return made


def staged(session: SparkSession, table: TableLocation, text: str) -> Staged:
    """A statement that is computed and not put; `T` stands for the table."""
    dml = statement(session, text.replace(" T ", f" delta.`{table}` ", 1))
    assert dml is not None
    return publisher(session).stage(dml)


def log_of(table: TableLocation) -> list[str]:
    return [path.name for path in commit_paths(table)]


def said(error: BaseException) -> str:
    """The one note."""
    (note,) = error.__notes__
    return str(note)


# ------------------------------------------------------------------------------------------- statements that we follow


def test_a_store_that_says_that_nothing_was_written_is_believed(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a file system has no hard links: the commit did fail, and cannot arrive."""
    gate = Gate(session)

    class PutFailed:
        def __getattr__(self, name: str) -> Any:
            return (lambda token: -2) if name == "done" else getattr(real, name)

    def fails(text: str) -> Callable[[], object]:
        def work() -> None:
            raise ValueError("the commit failed") from OSError(text)

        return work

    real = gate._gate
    monkeypatch.setattr(gate, "_gate", PutFailed())
    with pytest.raises(ValueError, match="failed") as unsure:
        gate.run(fails("storage is away"), statement_id="t")
    assert said(unsure.value).startswith("lakegate: its commit failed, and may yet arrive")
    with pytest.raises(ValueError, match="failed") as sure:
        gate.run(
            fails("no commit: this file system gave no hard link; nothing was written at 7.json"), statement_id="t"
        )
    assert not hasattr(sure.value, "__notes__")


def test_an_update_of_a_concurrently_dropped_column_names_the_commit_that_dropped_it(
    session: SparkSession, table: TableLocation
) -> None:
    """Spark's error stays what it is; of the two that came first, the one that changed the definition is named."""
    late = staged(session, table, "UPDATE T SET v = 'z' WHERE id = 1")
    rows(session, 3).write.format("delta").mode("append").save(table)
    own = session.newSession()
    with tokened(own, write_token(1, 0)):
        own.sql(f"ALTER TABLE delta.`{table}` DROP COLUMN v")
    before = log_of(table)
    with pytest.raises(AnalysisException, match="`v` cannot be resolved") as raised:
        publisher(session).finish(late)
    assert said(raised.value).startswith(
        'lakegate: version 3 (DROP COLUMNS, user metadata {"lakegate": 1, "epoch": 1, "batch": 0, '
    )
    assert "changed the table's definition" in said(raised.value)
    assert "nothing of it was written" in said(raised.value)
    assert log_of(table) == before


def test_a_statement_that_fails_on_rows_that_came_says_who_brought_them(
    session: SparkSession, table: TableLocation
) -> None:
    """They are looked into, or it is executed on them: either fails as a serial run would, and names the job."""
    late = staged(session, table, "UPDATE T SET v = v || CAST(1 / (7 - id) AS INT) WHERE id <> 1")
    foreign = '{"lakegate":1,"job":"nightly"}'
    own = session.newSession()
    own.conf.set("spark.databricks.delta.commitInfo.userMetadata", foreign)
    rows(own, 7).write.format("delta").mode("append").save(table)
    before = log_of(table)
    with pytest.raises(JVM_ERRORS, match="TASK_WRITE_FAILED") as raised:
        publisher(session).finish(late)
    assert said(raised.value).startswith("lakegate: version 2 (WRITE, job nightly) came first; this statement")
    assert log_of(table) == before


def test_a_statement_that_fails_by_itself_blames_nobody(session: SparkSession, table: TableLocation) -> None:
    """There was no concurrent commit."""
    with pytest.raises(JVM_ERRORS) as raised:
        lakegate.sql(session, f"UPDATE delta.`{table}` SET v = CAST(1 / (2 - id) AS INT)")
    assert said(raised.value) == "lakegate: nothing of this statement was written"


CUT_OFF = "An error occurred while calling o1.sql"
"""What py4j says where the connection ended, and the JVM goes on."""


@pytest.mark.parametrize(
    ("error", "is_staged", "kind"),
    [
        (Py4JError(CUT_OFF), False, CommitInDoubt),
        (Py4JNetworkError("the answer was lost"), False, CommitInDoubt),
        (ConnectionRefusedError("refused"), False, CommitInDoubt),
        (Py4JError(CUT_OFF), True, Py4JError),
        (Py4JError(f"{CUT_OFF}. Trace:\npy4j.Py4JException: Method sql does not exist"), False, Py4JError),
    ],
)
def test_a_statement_whose_answer_was_lost_may_have_been_committed(
    session: SparkSession, error: Exception, kind: type[Exception], *, is_staged: bool
) -> None:
    """It may be under way yet. Not what is only staged, nor a call that could not be made."""

    def cut_off() -> None:
        raise error

    with pytest.raises(kind) as raised:
        Gate(session).run(cut_off, statement_id="cut off", is_staged=is_staged)
    assert (raised.value.__cause__ is error) == (kind is CommitInDoubt)
    assert raised.value is error or kind is CommitInDoubt


def test_a_failed_put_is_not_reported_as_nothing_written(session: SparkSession, table: TableLocation) -> None:
    """As storage may answer late: the log's folder is away when the commit is put."""
    started, released, log = (Path(f"{table}.{name}") for name in ("started", "released", "log"))
    slow = waits_for(rows(session, 1), started, released)
    merge = lakegate.DeltaTable.forPath(session, table).alias("t").merge(slow.alias("s"), "t.id = s.id")
    before = log_of(table)
    with (
        confs(session, {QUICK_CONF: "off"}),
        ThreadPoolExecutor(1) as pool,
    ):  # a quick one reads its source before the log
        running = pool.submit(merge.whenMatchedUpdate(set={"v": "'z'"}).execute)
        wait_until(lambda: started.exists() or running.done())
        Path(table, "_delta_log").rename(log)
        released.touch()
        error = running.exception()
    log.rename(Path(table, "_delta_log"))
    assert error is not None
    assert said(error).startswith("lakegate: its commit failed, and may yet arrive")
    assert log_of(table) == before


def test_an_error_after_the_commit_says_that_there_is_one(session: SparkSession, table: TableLocation) -> None:
    """For example an error of Delta's work after a commit: to run the statement again would apply it twice."""

    def fails_late() -> None:
        session.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'a')")
        raise ValueError("late")

    with pytest.raises(ValueError, match="late") as raised:
        Gate(session).run(fails_late, statement_id="late")
    assert said(raised.value) == "lakegate: the statement was committed as version 2; what failed came after it"


def test_a_put_that_may_have_arrived_is_never_reported_as_not_written(
    session: SparkSession, table: TableLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply was lost, and something else fails after it."""
    late = staged(session, table, "INSERT INTO T VALUES (9, 'x')")
    session.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'a')")
    tried = []

    def commit(*asked: object) -> exact.Tried:
        tried.append(asked)
        if len(tried) > 1:
            raise ValueError("something else")
        return exact.Tried("unknown", "of a put that may arrive")

    monkeypatch.setattr(CommitAttempt, "commit", commit)
    with pytest.raises(CommitInDoubt, match="whether it was made") as raised:
        publisher(session).finish(late)
    assert str(raised.value.__cause__) == "something else"


def test_after_a_lost_answer_an_unreadable_log_never_counts_as_nothing_written(
    session: SparkSession, table: TableLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put has arrived: a caller who believed it would write twice."""
    late = staged(session, table, "INSERT INTO T VALUES (9, 'x')")
    session.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'a')")
    real = exact.commit

    def commit(*asked: Any, **more: Any) -> exact.Tried:
        tried = real(*asked, **more)
        monkeypatch.setattr(Jvm, "texts_after", fails)
        return exact.Tried("unknown", tried.transaction_id)

    def fails(*asked: object) -> None:
        raise Py4JError("connection refused")

    monkeypatch.setattr(exact, "commit", commit)
    with pytest.raises(CommitInDoubt, match=r"whether it was made .*reason=connection refused version=3") as raised:
        publisher(session).finish(late)
    assert "nothing was written" not in str(raised.value)
    assert ids(session, table) == [0, 1, 2, 3, 9]


def another(table: TableLocation, session: SparkSession) -> None:
    session.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'a')")


def recreated(table: TableLocation, session: SparkSession) -> None:
    shutil.copytree(table, f"{table}.old")
    shutil.rmtree(table)
    make_table(session, Path(table), **MAPPED)
    shutil.copytree(f"{table}.old", table, ignore=shutil.ignore_patterns("_delta_log"), dirs_exist_ok=True)
    session.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'a')")


def cleaned(table: TableLocation, session: SparkSession) -> None:
    session.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'a')")
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    commit_paths(table)[2].unlink()


@pytest.mark.parametrize(
    ("happens", "kind", "facts"),
    [
        (another, UnsupportedTable, {"winner_version": 2, "winner_operation": "WRITE"}),
        (recreated, InvalidRequest, {"winner_version": 0, "winner_operation": "CREATE TABLE"}),
        (cleaned, LogGone, {"winner_version": 3, "winner_operation": "DELETE"}),
    ],
)
def test_a_refusal_names_the_commit_that_came_first(
    session: SparkSession,
    table: TableLocation,
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[TableLocation, SparkSession], None],
    kind: type[LakegateError],
    facts: dict[str, object],
) -> None:
    """Version and operation, among the error's facts and in its words."""
    late = staged(session, table, "INSERT INTO T VALUES (9, 'x')")
    happens(table, session)
    if kind is UnsupportedTable:
        monkeypatch.setattr(execution, "UNSERVED_FEATURES", frozenset({"columnMapping"}))
    before = log_of(table)
    with pytest.raises(kind, match="nothing was written") as raised:
        publisher(session).finish(late)
    assert facts.items() <= raised.value.facts.items()
    assert f"winner_operation={facts['winner_operation']}" in str(raised.value)
    assert log_of(table) == before


# ------------------------------------------------------------------------------------- statements that are left out


def test_a_statement_that_its_transaction_id_leaves_out_says_so(session: SparkSession, table: TableLocation) -> None:
    """Before it is executed, by Delta, or as it follows the one that has used the id; one with nothing to do does not."""
    own, events = session.newSession(), list[StatementPublished]()
    stop = on_statement(events.append)
    insert = f"INSERT INTO delta.`{table}` VALUES (9, 'x')"
    try:
        with tokened(own, write_token(1, 0)):
            late = staged(own, table, "INSERT INTO T VALUES (9, 'x')")
            lakegate.sql(own, f"DELETE FROM delta.`{table}` WHERE id = 77")
            lakegate.sql(own, insert)
            lakegate.sql(own, insert)
            publisher(session).finish(late)
    finally:
        stop()
    assert [(event.version, event.is_superseded) for event in events] == [
        (None, False),
        (2, False),
        (None, True),
        (None, True),
    ]
    assert len(log_of(table)) == 3


# ------------------------------------------------------------------------------- statements that are stock Delta's alone


def losing(
    session: SparkSession, table: TableLocation, run: Callable[[SparkSession], object], *winner: Mapping[str, Any]
) -> BaseException:
    """The error of a statement that computed its commit, and finds its version taken as it puts it."""
    gate = Gate(session)
    own = session.newSession()
    own.conf.set(JOB_CONF, "late")
    own.conf.set(WAIT_CONF, "60000")
    gate.govern(table)
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run, own)
            wait_until(lambda: gate.is_awaited(table, "late") or running.done())
            foreign_commit(table, *winner, user_metadata="by hand")
            gate.grant(table, "late", 1, 600_000)
            error = running.exception()
    finally:
        gate.release(table)
    assert error is not None
    return error


def test_a_restore_that_loses_says_to_whom(session: SparkSession, table: TableLocation) -> None:
    """Stock Delta's conflict stays what it is; the note names the commit, that nothing was written, and what to do."""
    before = log_of(table)
    error = losing(session, table, lambda own: lakegate.DeltaTable.forPath(own, str(table)).restoreToVersion(0))
    assert conflict_name(error) is not None
    assert said(error) == (
        "lakegate: another commit (WRITE, user metadata by hand) came first, and stock Delta cannot rebase this statement on "
        "it; nothing of it was written. Run it again, or in a turn, which nobody else commits in "
        f"(docs/reference/conflict-exceptions.md, {conflict_name(error)})"
    )
    assert len(log_of(table)) == len(before) + 1


def test_a_statement_of_sql_text_that_loses_says_to_whom(session: SparkSession, table: TableLocation) -> None:
    """As one of those that are given to Spark as they are."""
    metadata = next(json.loads(line) for line in commit_paths(table)[0].read_text().split("\n") if '"metaData"' in line)
    text = f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('mine' = '1')"
    error = losing(session, table, lambda own: lakegate.sql(own, text), metadata)
    assert said(error).startswith("lakegate: another commit (WRITE, user metadata by hand) came first, and stock Delta")
