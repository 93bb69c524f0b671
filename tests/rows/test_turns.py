"""Statements of a turn: whatever is executed again, the commit has the turn's token, once, and never after a successor's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakegate.delta.commit_file import commit_info, commit_tokens
from lakegate.delta.idempotent_writes import NUMBER_CONF, single_write
from lakegate.ids import TableLocation, TokenId
from lakegate.rows.committer import publisher
from lakegate.rows.sql import statement
from lakegate.rows.statement import Dml
from tests.delta.delta_tables import commit_paths, foreign_commit, ids, make_table, rows, txn, write_token

OWN = TokenId("lakegate/Own")
TOKEN, LATER = (write_token(epoch, 1, token_id=OWN) for epoch in (1, 2))


def table_of(session: SparkSession, tmp_path: Path, *, vectors: str = "true") -> TableLocation:
    """Six rows in one file."""
    made = make_table(session, tmp_path / "t", enableDeletionVectors=vectors)
    rows(session, *range(6)).write.format("delta").mode("append").save(made)
    return made


def dml_of(session: SparkSession, table: TableLocation, text: str) -> Dml:
    """A statement; `T` stands for the table."""
    dml = statement(session, text.replace(" T ", f" delta.`{table}` ", 1))
    assert dml is not None
    return dml


UPDATE = "UPDATE T SET v = concat(v, '!') WHERE id >= 3"


def appended(session: SparkSession, table: TableLocation) -> None:
    rows(session, 9).write.format("delta").mode("append").save(table)


def changed(session: SparkSession, table: TableLocation) -> None:
    session.sql(f"UPDATE delta.`{table}` SET v = concat(v, '?') WHERE id = 4")


def redefined(session: SparkSession, table: TableLocation) -> None:
    session.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('some' = 'thing')")


@pytest.mark.also_without_caches
@pytest.mark.parametrize("vectors", ["true", "false"])
@pytest.mark.parametrize("earlier", [appended, changed])
def test_what_is_executed_again_on_some_files_has_the_token(
    session: SparkSession, tmp_path: Path, vectors: str, earlier: Callable[[SparkSession, TableLocation], None]
) -> None:
    """Also where nothing of the first execution remains; and the token names the step."""
    table = table_of(session, tmp_path, vectors=vectors)
    before = publisher(session).stage(dml_of(session, table, UPDATE))
    earlier(session, table)
    assert publisher(session).finish(before, TOKEN).level == 3
    last = commit_paths(table)[-1].read_text()
    assert (commit_tokens(last), commit_info(last)["userMetadata"]) == ({OWN: TOKEN.number}, TOKEN.user_metadata)


@pytest.mark.also_without_caches
def test_a_successor_that_began_before_the_re_execution_fences(session: SparkSession, tmp_path: Path) -> None:
    """A job that was paused for a whole turn writes nothing, although the execution has seen the successor's entry."""
    table = table_of(session, tmp_path)
    dml = dml_of(session, table, UPDATE)
    executions: list[int] = []

    def execute() -> object:
        executions.append(1)
        if len(executions) == 2:
            foreign_commit(table, txn(OWN, LATER.number))
        return dml.execute()

    before = publisher(session).stage(replace(dml, execute=execute, quick=None))
    redefined(session, table)
    log = len(commit_paths(table))
    outcome = publisher(session).finish(before, TOKEN)
    assert (len(executions), outcome.is_superseded, outcome.version) == (2, True, None)
    assert len(commit_paths(table)) == log + 1, "the successor's"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("DELETE FROM T WHERE id >= 6", [*range(6)]),
        ("UPDATE T SET id = -id WHERE id >= 6", [-7, -6, *range(6)]),
        ("MERGE INTO T t USING (SELECT 6L AS k) s ON t.id = s.k WHEN MATCHED THEN DELETE", [*range(6), 7]),
    ],
)
def test_a_statement_that_found_nothing_checks_commits_made_before_its_turn(
    session: SparkSession, tmp_path: Path, text: str, left: list[int]
) -> None:
    """It had no commit to rebase; without concurrent commits it does nothing."""
    table = table_of(session, tmp_path)
    dml = dml_of(session, table, text)
    assert publisher(session).finish(publisher(session).stage(dml), TOKEN).version is None
    before = publisher(session).stage(dml)
    rows(session, 6, 7).write.format("delta").mode("append").save(table)
    version = publisher(session).finish(before, TOKEN).version
    assert ids(session, table) == left
    assert version is not None
    assert commit_tokens(commit_paths(table)[version].read_text()) == {OWN: TOKEN.number}


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [appended, redefined])
def test_a_single_write_may_be_executed_again(
    session: SparkSession, tmp_path: Path, earlier: Callable[[SparkSession, TableLocation], None]
) -> None:
    """Its first execution has taken the number out of the session's settings, as any write would that is the last one."""
    table, own = table_of(session, tmp_path), session.newSession()
    dml, gate = dml_of(own, table, UPDATE), publisher(session).gate
    executions: list[int] = []

    def execute() -> object:
        executions.append(1)
        if len(executions) > 1:
            return dml.execute()
        assert gate.reserve(table, "so that its commit is kept", 600_000)
        try:
            return dml.execute()
        finally:
            gate.unreserve(table, "so that its commit is kept")
            winning = threading.Thread(target=earlier, args=(session, table))
            winning.start()
            winning.join()

    with single_write(own, TOKEN):
        published = publisher(session).publish(replace(dml, execute=execute, quick=None))
        assert own.conf.get(NUMBER_CONF, None) is None, "a second write is refused as ever"
    assert published.level == (3 if earlier is appended else 4)
    assert commit_tokens(commit_paths(table)[-1].read_text()) == {OWN: TOKEN.number}
