"""The cached state of a snapshot stays for the statements that run on it."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta import commit as exact
from lakegate.delta.actions import Action
from lakegate.delta.jvm import Jvm
from lakegate.delta.post_commit import Work
from lakegate.ids import Version
from lakegate.rows.committer import publisher
from lakegate.rows.sql import statement
from tests.delta.delta_tables import foreign_commit, make_table, txn
from tests.waiting import wait_until, waits_for


@pytest.mark.slow
def test_a_statement_keeps_its_snapshot_s_state_cached_while_others_commit(
    session: SparkSession, tmp_path: Path
) -> None:
    """Until it ends, and no longer; each of several on the same snapshot, until the last of them ends."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT")
    session.sql(f"INSERT INTO delta.`{table}` SELECT /*+ COALESCE(1) */ id, 0 FROM range(20)")
    jvm = Jvm(session)
    log = jvm.delta_log(str(table))
    started, released = tmp_path / "started", tmp_path / "released"
    slow = waits_for(session.createDataFrame([(11,)], "id BIGINT").coalesce(1), started, released)
    merge = lakegate.DeltaTable.forPath(session, str(table)).alias("t").merge(slow.alias("s"), "t.id = s.id")

    def update(id_: int) -> None:
        # Staged, so that it is committed as one that has lost is.
        dml = statement(session, f"UPDATE delta.`{table}` SET v = 1 WHERE id = {id_}")
        assert dml is not None
        publisher(session).finish(publisher(session).stage(dml))

    update(0)
    first = log.unsafeVolatileSnapshot()
    with ThreadPoolExecutor(1) as pool:
        try:
            with jvm.holding(log):
                running = pool.submit(merge.whenMatchedUpdate(set={"v": "t.v + 1"}).execute)
                wait_until(lambda: started.exists() or running.done())
                update(1)
            second = log.unsafeVolatileSnapshot()
            update(2)
            assert log.unsafeVolatileSnapshot().version() == second.version() + 1 == first.version() + 2
            assert (first.isCached(), second.isCached()) == (True, False)
        finally:
            released.touch()
        running.result()
    assert not first.isCached()
    assert {row.id: row.v for row in session.table(f"delta.`{table}`").where("v > 0").collect()} == dict.fromkeys(
        (0, 1, 2, 11), 1
    )


def test_files_of_a_small_table_are_found_without_a_job_of_spark(session: SparkSession, tmp_path: Path) -> None:
    """Delta lists them in the checksum of each commit. A list that is not whole is not taken."""
    table = make_table(session, tmp_path / "t", "id BIGINT, v BIGINT", enableDeletionVectors="true")
    session.sql(f"INSERT INTO delta.`{table}` SELECT id, 0 FROM range(0, 20, 1, 2)")
    lakegate.DeltaTable.forPath(session, str(table)).delete("id < 2")
    jvm = Jvm(session)
    tracker = session.sparkContext.statusTracker()

    def found() -> tuple[set[str], bool]:
        """The files of the newest version, and whether Spark had jobs for it."""
        group = uuid.uuid4().hex
        session.sparkContext.setJobGroup(group, "files")
        try:
            with jvm.active():
                files = jvm.delta_log(str(table)).unsafeVolatileSnapshot().allFiles().collectAsList()
            return {str(file.path()) for file in files}, bool(tracker.getJobIdsForGroup(group))
        finally:
            session.sparkContext._jsc.clearJobGroup()

    files, has_jobs = found()
    assert len(files) > 1
    assert not has_jobs
    checksum = max((tmp_path / "t" / "_delta_log").glob("*.crc"))
    said = json.loads(checksum.read_text())
    assert {file["path"] for file in said["allFiles"]} == files
    said["allFiles"].pop()
    checksum.write_text(json.dumps(said))
    checksum.with_name(f".{checksum.name}.crc").unlink(missing_ok=True)  # Hadoop's own checksum of the file
    jvm.root.org.apache.spark.sql.delta.DeltaLog.clearCache()
    jvm.trust_checksum(str(table))
    assert found() == (files, True)


def test_a_reader_of_concurrent_commits_causes_no_spark_job(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """A reader that lists the log between a put and its checksum would make Delta install a snapshot without one for all."""
    table = make_table(session, tmp_path / "t")
    ours, other = exact.private(session), Jvm(session.newSession())
    log = ours.delta_log(str(table))
    is_over, seen = threading.Event(), set[int]()

    def look_on() -> None:
        while not is_over.is_set():
            seen.add(other.snapshot(log).version())

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(jobs, look_on)
        try:
            for version in range(1, 40):
                ids = [Action("txn", {"appId": "x", "version": version})]
                assert jobs(lambda v=Version(version), a=ids: exact.commit(ours, log, v, a, later=lambda _: None)) == 0
                # A commit that was acknowledged is seen.
                assert other.snapshot(log).version() == version
        finally:
            is_over.set()
        assert looking.result() == 0
    assert len(seen) > 10


def test_when_other_threads_see_a_commit_in_flight(session: SparkSession, tmp_path: Path) -> None:
    """Not for a second at most; but at once if a later commit exists, so that no log has a gap.

    A commit that was seen once stays visible, even while another thread puts the same version, which will be refused: no log goes
    back.
    """
    table = make_table(session, tmp_path / "t")
    jvm, root = Jvm(session), cast("Any", session._jvm)
    log = jvm.delta_log(str(table))
    commits = root.java.lang.Class.forName(
        "io.github.lakegate.caches.OpenCommits", True, log.store().getClass().getClassLoader()
    )

    def say(name: str, *asked: Any) -> None:
        method = next(each for each in commits.getDeclaredMethods() if each.getName() == name)
        method.setAccessible(True)
        method.invoke(None, root.java.util.ArrayList(list(asked)).toArray())

    def commit(version: int) -> Any:
        return jvm.path(log.logPath(), f"{version:020}.json")

    def put(version: int) -> float:
        begun_s = time.monotonic()
        other.submit(say, "put", commit(version)).result()
        return begun_s

    def seen() -> list[int]:
        return sorted(jvm.texts_after(log, -1) or ())

    def is_seen(versions: list[int], begun_s: float) -> bool:
        return seen() == versions or time.monotonic() - begun_s > 1

    with ThreadPoolExecutor(1) as other:
        other.submit(say, "begin").result()
        begun_s = put(1)
        foreign_commit(table, txn("y", 1))
        assert is_seen([0], begun_s)
        assert other.submit(seen).result() == [0, 1], "it is its own"
        assert seen() == [0, 1], "its own thread has seen it"
        begun_s = put(2)
        foreign_commit(table, txn("y", 2))
        assert is_seen([0, 1], begun_s)
        wait_until(lambda: seen() == [0, 1, 2])
        put(2)
        assert seen() == [0, 1, 2], "it was seen before"
        begun_s = put(3)
        foreign_commit(table, txn("y", 3))
        assert is_seen([0, 1, 2], begun_s)
        foreign_commit(table, txn("y", 4))
        assert seen() == [0, 1, 2, 3, 4], "a later commit exists"
        foreign_commit(table, txn("y", 5))
        say("isPut", commit(5))
        put(5)
        assert seen() == [0, 1, 2, 3, 4, 5], "it was put by a thread that makes no secret of it"
        foreign_commit(table, txn("y", 6))
        begun_s = put(6)
        for name, *asked in (("begin",), ("put", commit(6)), ("isTaken",), ("end",)):
            say(name, *asked)  # this thread was refused
        assert is_seen([0, 1, 2, 3, 4, 5], begun_s), "a put that was refused shows nothing"
        other.submit(say, "end").result()
        assert seen() == [0, 1, 2, 3, 4, 5, 6]
        other.submit(say, "begin").result()
        put(6)
        assert seen() == [0, 1, 2, 3, 4, 5, 6], "seen before, by the end"
        other.submit(say, "end").result()


def test_a_checksum_that_came_after_its_commit_was_listed_is_read(
    session: SparkSession, tmp_path: Path, jobs: Callable[[Callable[[], object]], int]
) -> None:
    """As that of another driver's commit."""
    table = make_table(session, tmp_path / "t")
    jvm = exact.private(session)
    left: list[Work] = []
    ids = [Action("txn", {"appId": "x", "version": 1})]
    exact.commit(jvm, jvm.delta_log(str(table)), Version(1), ids, later=left.append)
    jvm.root.org.apache.spark.sql.delta.DeltaLog.clearCache()
    log = jvm.delta_log(str(table))
    assert not log.unsafeVolatileSnapshot().checksumOpt().isDefined()
    left.pop()()
    assert jobs(lambda: exact.commit(jvm, log, Version(2), ids, later=left.append)) == 0
