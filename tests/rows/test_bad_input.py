"""Statements that cannot be published: each error says what was not done, and the table stays as it was."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.actions import Action, Captured
from lakegate.delta.gate import Gate
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.table_log import LogGone
from lakegate.errors import Corrupt, InvalidRequest, Unavailable, UnsupportedTable
from lakegate.ids import TableLocation
from lakegate.rows import execution
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.sql import statement
from tests.delta.delta_tables import commit_paths, ids, make_table, rows

VECTORS = {"enableDeletionVectors": "true"}


@pytest.fixture
def table(session: SparkSession, tmp_path: Path) -> TableLocation:
    """Ten rows in one file, with deletion vectors."""
    made = make_table(session, tmp_path / "t", **VECTORS)
    rows(session, *range(10)).write.format("delta").mode("append").save(made)
    return made


def staged(session: SparkSession, table: TableLocation, text: str) -> Staged:
    """A statement that is computed and not put; `T` stands for the table."""
    dml = statement(session, text.replace(" T ", f" delta.`{table}` ", 1))
    assert dml is not None
    return publisher(session).stage(dml)


def bytes_of(table: TableLocation) -> dict[str, bytes]:
    """The log's commits."""
    return {path.name: path.read_bytes() for path in commit_paths(table)}


def test_a_recreated_table_is_not_written(session: SparkSession, table: TableLocation) -> None:
    """Its log has the same version again, of another table."""
    before = staged(session, table, "INSERT INTO T VALUES (1, 'x')")
    shutil.copytree(table, f"{table}.old")
    shutil.rmtree(table)
    make_table(session, Path(table), **VECTORS)
    for file in Path(f"{table}.old").glob("*.parquet"):
        shutil.copy(file, table)
    rows(session, 20).write.format("delta").mode("append").save(table)
    log = bytes_of(table)
    with pytest.raises(InvalidRequest, match="created again, while the statement ran; nothing was written"):
        publisher(session).finish(before)
    assert bytes_of(table) == log


def test_a_table_that_another_process_recreated_with_fewer_versions_is_not_written(
    session: SparkSession, table: TableLocation, tmp_path: Path
) -> None:
    """Nothing follows the version that it was computed on, and that one is not there: ours would stand behind a gap."""
    other = make_table(session, tmp_path / "other", **VECTORS)
    before = staged(session, table, "INSERT INTO T VALUES (1, 'x')")
    assert len(bytes_of(table)) == 2
    shutil.rmtree(Path(table, "_delta_log"))
    shutil.copytree(Path(other, "_delta_log"), Path(table, "_delta_log"))
    log = bytes_of(table)
    with pytest.raises(InvalidRequest, match="created again, while the statement ran; nothing was written") as raised:
        publisher(session).finish(before)
    assert raised.value.facts["winner_operation"] == "CREATE TABLE"
    assert bytes_of(table) == log


def test_a_name_that_is_given_to_another_table_meanwhile(
    session: SparkSession, table: TableLocation, tmp_path: Path
) -> None:
    """Between its look-up and its execution: the commit of the one is not put to the other."""
    other = make_table(session, tmp_path / "other", **VECTORS)
    rows(session, 3).write.format("delta").mode("append").save(other)
    session.sql(f"CREATE TABLE moved USING delta LOCATION '{table}'")
    try:
        dml = statement(session, "DELETE FROM moved WHERE id = 3")
        assert dml is not None
        session.sql("DROP TABLE moved")
        session.sql(f"CREATE TABLE moved USING delta LOCATION '{other}'")
        logs = bytes_of(table), bytes_of(other)
        with pytest.raises(
            InvalidRequest, match="was given to another table while the statement ran; nothing was written"
        ):
            publisher(session).stage(dml)
        assert (bytes_of(table), bytes_of(other)) == logs
    finally:
        session.sql("DROP TABLE moved")


def test_a_log_that_was_cleaned_past_the_base_is_said(session: SparkSession, table: TableLocation) -> None:
    """The commits made since can no longer be read."""
    before = staged(session, table, "DELETE FROM T WHERE id = 3")
    for number in (20, 21):
        rows(session, number).write.format("delta").mode("append").save(table)
    commit_paths(table)[2].unlink()
    log = bytes_of(table)
    with pytest.raises(LogGone, match="cleaned up beyond the version that the statement was computed on; nothing"):
        publisher(session).finish(before)
    assert bytes_of(table) == log


@pytest.mark.parametrize(
    ("text", "brought"),
    [("UPDATE T SET v = 'x' WHERE id = 3", "*.parquet"), ("DELETE FROM T WHERE id = 3", "deletion_vector_*.bin")],
    ids=["rewritten rows", "a vector"],
)
def test_staged_files_that_were_vacuumed_are_missed(
    session: SparkSession, table: TableLocation, text: str, brought: str
) -> None:
    """A commit must not name files that are gone, be it a vector: the table could no longer be read."""
    session.sql(
        f"DELETE FROM delta.`{table}` WHERE id = 9"
    )  # the vector that the file has already is not the statement's
    there = set(Path(table).iterdir())
    before = staged(session, table, text)
    (gone,) = set(Path(table).glob(brought)) - there
    gone.unlink()
    log = bytes_of(table)
    with pytest.raises(InvalidRequest, match="had written is gone, as after VACUUM; nothing was committed"):
        publisher(session).finish(before)
    assert bytes_of(table) == log
    assert ids(session, table) == list(range(9))


def test_a_staged_vector_that_is_named_absolutely_is_missed_too(session: SparkSession, table: TableLocation) -> None:
    """As below a table elsewhere; one that is there is not missed."""
    with confs(session, {QUICK_CONF: "off"}):  # a small vector of a quick one is in the log
        before = staged(session, table, "DELETE FROM T WHERE id = 3")
    (file,) = Path(table).glob("deletion_vector_*.bin")
    assert isinstance(before.commit, Captured)
    actions = tuple(
        Action(a.kind, {**a.body, "deletionVector": {**vector, "storageType": "p", "pathOrInlineDv": file.as_uri()}})
        if (vector := a.body.get("deletionVector")) is not None
        else a
        for a in before.commit.actions
    )
    before = replace(before, commit=replace(before.commit, actions=actions))
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(InvalidRequest, match="had written is gone"):
        publisher(session).finish(before)
    file.write_bytes(content)
    publisher(session).finish(before)
    assert ids(session, table) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_damaged_vector_is_found_out(session: SparkSession, table: TableLocation) -> None:
    """The checksum or the size of the winning commit's vector is wrong."""
    before = staged(session, table, "DELETE FROM T WHERE id = 3")
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 5")
    vectors = sorted(Path(table).glob("deletion_vector_*.bin"), key=lambda path: path.stat().st_mtime)
    vector = vectors[-1]
    content = bytearray(vector.read_bytes())
    content[-6] ^= 1
    vector.write_bytes(bytes(content))
    log = bytes_of(table)
    with pytest.raises(Unavailable, match=r"cannot be read; nothing was written.*[Cc]hecksum"):
        publisher(session).finish(before)
    vector.with_name(f".{vector.name}.crc").unlink()  # object stores have no such file: the vector's own is looked at
    with pytest.raises(Corrupt, match="nothing was written"):
        publisher(session).finish(before)
    assert bytes_of(table) == log


def test_a_feature_that_a_commit_cannot_follow_is_named(
    session: SparkSession, table: TableLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only when the race was lost: alone, such a table is written by stock Delta as always."""
    monkeypatch.setattr(execution, "UNSERVED_FEATURES", frozenset({"deletionVectors"}))
    delete = f"DELETE FROM delta.`{table}` WHERE id = 1"
    assert lakegate.sql(session, delete).lakegate.level == 0
    before = staged(session, table, "DELETE FROM T WHERE id = 3")
    rows(session, 20).write.format("delta").mode("append").save(table)
    log = bytes_of(table)
    with pytest.raises(UnsupportedTable, match="feature=deletionVectors"):
        publisher(session).finish(before)
    assert bytes_of(table) == log


def test_what_a_statement_raises_by_itself_is_raised(session: SparkSession, table: TableLocation) -> None:
    """An ambiguous MERGE, a condition that is not deterministic, a column that is not there: the stock errors, and a note."""
    log = bytes_of(table)
    target = lakegate.DeltaTable.forPath(session, table)
    twice = rows(session, 3, 3)
    with pytest.raises(Exception, match="MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW") as ambiguous:
        target.alias("t").merge(twice.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()
    with pytest.raises(AnalysisException) as unresolved:
        target.delete("nobody = 1")
    with pytest.raises(AnalysisException, match=r"(?i)deterministic") as by_chance:
        target.delete("rand() < 0.5")
    assert [each.value.__notes__ for each in (ambiguous, unresolved, by_chance)] == [
        ["lakegate: nothing of this statement was written"]
    ] * 3
    assert bytes_of(table) == log


@pytest.mark.slow
def test_a_merge_that_became_ambiguous_is_refused_as_alone(session: SparkSession, table: TableLocation) -> None:
    """Re-executed after the winning commit it matches two rows of its source, as in a serial run."""
    text = (
        "MERGE INTO T t USING (SELECT * FROM VALUES (3, 'c'), (7, 'a'), (17, 'b') AS s(id, v)) s "
        "ON t.id % 10 = s.id % 10 AND t.v <> 'a' WHEN MATCHED THEN UPDATE SET v = s.v"
    )
    session.sql(f"UPDATE delta.`{table}` SET v = 'b' WHERE id = 3")
    before = staged(session, table, text)
    session.sql(f"UPDATE delta.`{table}` SET v = 'b' WHERE id = 7")
    log = bytes_of(table)
    with pytest.raises(Exception, match="MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW"):
        publisher(session).finish(before)
    assert bytes_of(table) == log


def test_unpinned_threads_are_refused(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement is identified by its thread in the JVM."""
    monkeypatch.setattr(session.sparkContext, "_gateway", object())  # as it is with PYSPARK_PIN_THREAD=false
    with pytest.raises(InvalidRequest, match="PYSPARK_PIN_THREAD"):
        Gate(session)
