"""Maintain streams on real Delta tables: when they have work, concurrently with writers, after a crash, in a whole pipeline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakegate.config import Maintain
from lakegate.config.build import files
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.local_files import LocalLog
from lakegate.errors import InvalidRequest
from lakegate.ids import TableLocation
from lakegate.ops.inspection import check_pipeline, verify_pipeline
from lakegate.pipeline import Pipeline, PipelineRun
from lakegate.rows.committer import publisher
from lakegate.rows.sql import statement
from lakegate.rows.statement import Dml
from lakegate.streams.maintenance import statements
from lakegate.telemetry.ledger_days import read_ledger
from tests.delta.delta_tables import commit_paths, ids, make_table, rows
from tests.stream_bench import DAY_MS, Bench, Crash, HandClock, stream, table

WEEK_MS = 7 * DAY_MS
KEPT_A_SECOND = {"deletedFileRetentionDuration": "interval 1 second"}


def bench(
    session: SparkSession, root: Path, kind: Maintain, *, columns: str = "id BIGINT, v STRING", **props: str
) -> Bench:
    """A table with three files of ten rows, and a stream `Up` that looks after it; the clock is right until it is moved."""
    clock = HandClock(now_ms=time.time_ns() // 1_000_000)
    b = Bench(session, str(root), (stream("Up", kind),), table(columns), clock=clock)
    make_table(session, Path(b.target), columns, enableDeletionVectors="true", **props)
    for first in (0, 10, 20):
        append(b, *range(first, first + 10))
    return b


def append(b: Bench, *numbers: int) -> None:
    rows(b.session, *numbers).write.format("delta").mode("append").save(b.target)


def dml(b: Bench, text: str) -> Dml:
    found = statement(b.session, text.replace("{t}", f"delta.`{b.target}`"))
    assert isinstance(found, Dml)
    return found


def operations(b: Bench) -> list[str]:
    return [commit.operation for commit in LocalLog(Path(b.target)).commits()]


def data_files(b: Bench) -> set[str]:
    return {path.name for path in Path(b.target).rglob("*.parquet") if "_delta_log" not in path.parts}


@pytest.mark.slow
def test_has_work_after_data_have_changed_and_none_after_its_own_commits(session: SparkSession, tmp_path: Path) -> None:
    """OPTIMIZE and VACUUM once; then idle at the head, until rows come, or old files are old enough."""
    b = bench(session, tmp_path, Maintain(optimize=True, vacuum_older_than_ms=WEEK_MS))
    up = b.stream("Up")
    assert up.has_sweep_work()
    assert up.idle_at() == {b.target: -1}
    up.run_sweep(b.turn("Up", 0, is_sweep=True), 0)
    # The last one carries the token, and what is known: VACUUM's own commits have none.
    assert operations(b)[4:] == ["OPTIMIZE", "VACUUM START", "VACUUM END", "UPDATE"]
    assert len(LocalLog(Path(b.target)).live_files()) == 1
    for one in (up, b.stream("Up")):  # what it saw itself, and what a new process reads
        assert not one.has_sweep_work()
        assert one.idle_at() == {b.target: b.log.head(b.target)}
    b.clock.now_ms += WEEK_MS - DAY_MS
    assert not up.has_sweep_work()
    b.clock.now_ms += 2 * DAY_MS
    assert up.has_sweep_work()
    b.sweep("Up", 1)
    assert (up.has_sweep_work(), b.stream("Up").has_sweep_work()) == (False, False)
    append(b, 30)
    assert up.has_sweep_work()


@pytest.mark.slow
def test_a_crash_between_optimize_and_vacuum_repeats_the_vacuum_only(session: SparkSession, tmp_path: Path) -> None:
    """The next turn, of another process, reads from the log which steps were done."""
    b = bench(session, tmp_path, Maintain(optimize=True, zorder_by=("id",), vacuum_older_than_ms=WEEK_MS))
    with pytest.raises(Crash):
        b.sweep("Up", 0, crash_before=frozenset({"vacuum"}))
    assert operations(b)[-1] == "OPTIMIZE"
    turn = b.turn("Up", 1, is_sweep=True)
    assert b.stream("Up").has_sweep_work()
    b.stream("Up").run_sweep(turn, 1)
    assert turn.written == ["vacuum"]
    assert operations(b).count("OPTIMIZE") == 1
    assert not b.stream("Up").has_sweep_work()


@pytest.mark.slow
def test_a_crash_after_the_vacuum_and_before_its_record_repeats_it(session: SparkSession, tmp_path: Path) -> None:
    """Nothing tells of it, so it is done again; and does no harm."""
    b = bench(session, tmp_path, Maintain(optimize=False, vacuum_older_than_ms=WEEK_MS))
    statements.vacuum(session, b.target, older_than_ms=None)  # what the crash left
    turn = b.turn("Up", 0, is_sweep=True)
    b.stream("Up").run_sweep(turn, 0)
    assert turn.written == ["vacuum"]
    assert ids(session, b.target) == list(range(30))


@pytest.mark.slow
def test_optimize_follows_writers_that_take_no_turns(session: SparkSession, tmp_path: Path) -> None:
    """Rows that are deleted, and come, between its reading and its commit: deleted once, and there once."""
    b = bench(session, tmp_path, Maintain(optimize=True))
    running = publisher(session)

    def between(staged: Any) -> Any:
        running.publish(dml(b, "DELETE FROM {t} WHERE id IN (3, 25)"))
        append(b, 99)
        return staged

    stage = running.stage
    running.stage = lambda one: between(stage(one))
    try:
        b.sweep("Up", 0)
    finally:
        del running.stage
    assert operations(b)[-1] == "OPTIMIZE"
    assert ids(session, b.target) == [i for i in (*range(30), 99) if i not in (3, 25)]
    # What came meanwhile is not compacted.
    assert b.stream("Up").has_sweep_work()
    said = list(LocalLog(Path(b.target)).commits())[-1]
    assert said.tokens
    assert (said.user_metadata or {})["step"] == "optimize"


@pytest.mark.matrix
def test_vacuum_leaves_what_a_slow_statement_has_written(session: SparkSession, tmp_path: Path) -> None:
    """A statement that was computed before the maintenance, and is put after it, finds its files."""
    b = bench(session, tmp_path, Maintain(optimize=True, vacuum_older_than_ms=WEEK_MS))
    running = publisher(session)
    slow = running.stage(dml(b, "UPDATE {t} SET v = 'b' WHERE id < 5"))
    before = data_files(b)
    b.sweep("Up", 0)
    assert before <= data_files(b)
    running.finish(slow)
    assert sorted(b.rows("id", "v")) == sorted((i, "b" if i < 5 else "a") for i in range(30))


@pytest.mark.slow
def test_vacuum_deletes_what_the_table_has_not_had_for_so_long(session: SparkSession, tmp_path: Path) -> None:
    """With the table's own consent to a second, files that OPTIMIZE replaced are gone after it."""
    b = bench(session, tmp_path, Maintain(optimize=True, vacuum_older_than_ms=1_000), **KEPT_A_SECOND)
    with pytest.raises(Crash):
        b.sweep("Up", 0, crash_before=frozenset({"vacuum"}))
    assert len(data_files(b)) == 4
    time.sleep(1.5)
    b.sweep("Up", 1)
    assert len(data_files(b)) == 1
    assert ids(session, b.target) == list(range(30))


@pytest.mark.slow
def test_files_are_not_deleted_sooner_than_the_table_says(session: SparkSession, tmp_path: Path) -> None:
    """Refused before anything is done, unless the user has switched Delta's own check off; so is a column that is not there."""
    b = bench(session, tmp_path, Maintain(optimize=True, zorder_by=("nobody",), vacuum_older_than_ms=DAY_MS))
    version = b.log.head(b.target)
    with pytest.raises(InvalidRequest, match=r"(?s)no column 'nobody'.*keeps them for 7d"):
        b.sweep("Up", 0)
    assert b.log.head(b.target) == version
    b.streams = (stream("Up", Maintain(optimize=False, vacuum_older_than_ms=DAY_MS)),)
    with confs(session, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
        b.sweep("Up", 0)
    assert "VACUUM END" in operations(b)


@pytest.mark.slow
def test_a_log_that_was_cleaned_up_makes_everything_due(session: SparkSession, tmp_path: Path) -> None:
    """The earlier history is unknown, so each step is done once; from then on it is known."""
    b = bench(session, tmp_path, Maintain(optimize=True, vacuum_older_than_ms=WEEK_MS))
    with confs(session, {"spark.databricks.delta.writeChecksumFile.enabled": "false"}):
        b.sweep("Up", 0)
    session.sql(f"ALTER TABLE delta.`{b.target}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    session.sql(f"ALTER TABLE delta.`{b.target}` SET TBLPROPERTIES ('x' = 'y')")
    for path in commit_paths(TableLocation(b.target))[:-1]:
        path.unlink()
    up = b.stream("Up")
    assert up.has_sweep_work()
    up.run_sweep(b.turn("Up", 1, is_sweep=True), 1)
    assert not b.stream("Up").has_sweep_work()


def test_check_tells_what_a_run_would_refuse(session: SparkSession, tmp_path: Path) -> None:
    """Columns that are not there, and times that the table does not allow: of a table that is there, and of one to be made."""
    make_table(session, tmp_path / "there", deletedFileRetentionDuration="interval 20 days")
    pipeline = Pipeline("upkeep", storage=str(tmp_path / "_lakegate"))
    there = pipeline.table("there", path=str(tmp_path / "there"))
    there.maintain(name="Up", optimize=True, zorder_by=["id", "nobody"], vacuum_older_than="19d")
    erasures = files(str(tmp_path / "in"), format="json", schema="id BIGINT")
    there.erase(name="TTL", every="6d", source=erasures, match={"id": "id"}, physical_within="30d")
    later = pipeline.table("later", path=str(tmp_path / "later"), columns="id BIGINT", cluster_by="id")
    later.maintain(name="Late", optimize=True, vacuum_older_than="7d")
    later.erase(name="Soon", source=erasures, match={"id": "id"}, physical_within="7d")
    (tmp_path / "in").mkdir()
    found = check_pipeline(pipeline.build(base_dir=str(tmp_path)), spark=session)
    told = {one.where: one.what for one in found if one.level == "fault"}
    assert [key.partition(".")[2] for key in sorted(told)] == [
        "Soon.erase.physical_within",
        "TTL.erase.physical_within",
        "Up.maintain.vacuum_older_than",
        "Up.maintain.zorder_by",
    ]
    assert "32d or more" in told["streams.TTL.erase.physical_within"]
    assert "more than 7d" in told["streams.Soon.erase.physical_within"]
    assert "20d or more" in told["streams.Up.maintain.vacuum_older_than"]


@pytest.mark.slow
def test_a_pipeline_with_maintenance_comes_to_an_end(session: SparkSession, tmp_path: Path) -> None:
    """Until idle: the append's rows are compacted, both are idle at one version; the turns are in the ledger and agree with
    the log; a second run finds nothing to do."""
    source = tmp_path / "in"
    for i in range(3):
        rows(session, i).write.mode("append").parquet(str(source))
    pipeline = Pipeline("upkeep", storage=str(tmp_path / "_lakegate"))
    lake = pipeline.table("t", path=str(tmp_path / "t"))
    lake.append(name="In", source=files(str(source)), max_rows_per_batch=1)
    lake.maintain(name="Up", after="In", optimize=True, vacuum_older_than="7d")
    spec = pipeline.build(base_dir=str(tmp_path))
    reports = PipelineRun(spec, spark=session).run("until_idle")
    assert reports["Up"].sweeps >= 1
    assert len(LocalLog(tmp_path / "t").live_files()) == 1
    turns = [row for row in read_ledger(spec.storage) if row.job == "Up"]
    assert {row.outcome for row in turns} == {"swept"}
    assert turns[0].versions
    assert verify_pipeline(spec).violations == []
    again = PipelineRun(spec, spark=session).run("until_idle")
    assert (again["In"].turns, again["Up"].turns) == (0, 0)
    assert PipelineRun(spec, ["Up"], spark=session).run("once")["Up"].turns == 0
