"""A statement that is executed again on some files leaves no scratch log behind, nor does one whose process was killed."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakegate
from lakegate.delta.idempotent_writes import confs
from lakegate.delta.jvm import JVM_ERRORS, Jvm
from lakegate.rows.committer import Staged, publisher
from lakegate.rows.conflict.rebase import KEYS_CAME
from lakegate.rows.quick import QUICK_CONF
from lakegate.rows.result import Result
from lakegate.rows.shallow_clone import ABANDONED_AFTER_S
from lakegate.rows.small_file_cache import Remembered
from lakegate.rows.sql import statement
from lakegate.rows.thread_scope import collected
from tests.delta.delta_tables import make_table, rows


def scratch_log(folder: Path, *, age_s: float) -> Path:
    """Makes the files that a killed process left some time ago; a folder's time is that of its last file."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("{}\n")
    (folder / "part-0.parquet").touch()
    then_s = time.time() - age_s
    os.utime(log, (then_s, then_s))
    return log


@pytest.mark.slow
def test_scratch_logs_of_killed_processes_are_removed_and_no_others(session: SparkSession, tmp_path: Path) -> None:
    """The first statement that needs one has those of a day ago looked for; what they wrote is left to VACUUM.

    The next one does not: a request for each folder of overlays with files in the table would be ever more of them.

    Its own is gone when it ends, and neither Delta nor the gate remembers it: a driver that runs for weeks would keep them all.
    """
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    rows(session, *range(5)).write.format("delta").mode("append").save(table)
    abandoned = scratch_log(tmp_path / "t" / "lg0123456789ab", age_s=ABANDONED_AFTER_S + 3600)
    of_another = scratch_log(tmp_path / "t" / "lgba9876543210", age_s=3600)
    no_scratch = scratch_log(tmp_path / "t" / "lg-archive", age_s=ABANDONED_AFTER_S + 3600)
    jvm, used, computed = Jvm(session), dict[str, Any](), list[bool]()

    def noted(path: str) -> object:
        used[path] = jvm.delta_log(path)
        try:
            return run_on(path)
        finally:  # it is put by nobody, which ends it with an error
            computed.append(used[path].unsafeVolatileSnapshot()._computedStateTriggered())

    dml = statement(session, f"UPDATE delta.`{table}` SET v = concat(v, 'b') WHERE id IN (3, 4)")
    assert dml is not None
    run_on = dml.execute_on
    assert run_on is not None
    staged = publisher(session).stage(replace(dml, execute_on=noted, quick=None))
    session.sql(f"UPDATE delta.`{table}` SET v = concat(v, 'c') WHERE id = 3")
    outcome: Result = publisher(session).finish(staged)
    assert outcome.level == 3
    found = {row.id: row.v for row in session.read.format("delta").load(table).collect()}
    assert found == {0: "a", 1: "a", 2: "a", 3: "acb", 4: "ab"}
    publisher(session).afterwards.wait()
    assert [log.exists() for log in (abandoned, of_another, no_scratch)] == [False, True, True]
    assert (abandoned.parent / "part-0.parquet").exists()
    later = scratch_log(tmp_path / "t" / "lg0000000000ff", age_s=ABANDONED_AFTER_S + 3600)
    publisher(session).sweep(dml.table, jvm.delta_log(table).dataPath())
    publisher(session).afterwards.wait()
    assert later.exists()
    assert computed == [False], "Delta takes the size of what it scans from the checksum, not from a job of Spark"
    ((path, log),) = used.items()
    assert not (Path(path.removeprefix("file:")) / "_delta_log").exists()
    assert not jvm.delta_log(path).equals(log)
    loader = jvm.root.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    gates = jvm.root.java.lang.Class.forName("io.github.lakegate.Gate", False, loader).getDeclaredField("TABLES")
    gates.setAccessible(True)
    known = [str(gate) for gate in gates.get(None).keySet()]
    assert any(table in gate for gate in known)
    assert not any(Path(path).name in gate for gate in known)


@pytest.mark.slow
def test_a_scratch_log_is_recognized_from_memory(session: SparkSession, tmp_path: Path) -> None:
    """Delta lists a log several times for a statement; its commit is on disk, too, as Spark reads commits past the log store."""
    table, jvm = make_table(session, tmp_path / "t"), Jvm(session)
    definition = (Path(table) / "_delta_log" / f"{0:020d}.json").read_text()
    folder = jvm.path(jvm.delta_log(table).dataPath(), "lg0123456789ab")
    log_path, on_disk = jvm.path(folder, "_delta_log"), tmp_path / "t" / "lg0123456789ab" / "_delta_log"
    said = {kind: body for line in definition.splitlines() for kind, body in json.loads(line).items()}
    counted = {"tableSizeBytes": 0, "numFiles": 0, "numMetadata": 1, "numProtocol": 1}
    told = {"metadata": said["metaData"], "protocol": said["protocol"], "allFiles": []}
    jvm.make_scratch(log_path, definition, json.dumps({**counted, **told}))
    try:
        assert [path.name for path in on_disk.iterdir() if not path.name.startswith(".")] == [f"{0:020d}.json"]
        assert (on_disk / f"{0:020d}.json").read_text() == definition
        (on_disk / f"{0:020d}.json").unlink()
        snapshot = jvm.snapshot(jvm.delta_log(str(folder)))
        assert snapshot.version() == 0
        assert snapshot.checksumOpt().isDefined()
        assert jvm.texts_after(jvm.delta_log(str(folder)), -1) == {0: definition}
    finally:
        jvm.forget(folder)
        jvm.drop_scratch(log_path)
    assert not on_disk.exists()
    assert jvm.delta_log(str(folder)).unsafeVolatileSnapshot().version() == -1


@pytest.mark.matrix
def test_small_files_are_read_once(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for the next statement, and none that was written here."""
    table, read = make_table(session, tmp_path / "t", enableDeletionVectors="true"), list[str]()
    rows(session, *range(20)).write.format("delta").mode("append").save(table)
    read_below = Jvm.read_below

    def noted(self: Jvm, folder: Any, name: str) -> bytes | None:
        read.append(name)
        return read_below(self, folder, name)

    def staged(id_: int) -> Staged:
        dml = statement(session, f"DELETE FROM delta.`{table}` WHERE id = {id_}")
        assert dml is not None
        return publisher(session).stage(dml)

    monkeypatch.setattr(Jvm, "read_below", noted)
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 0")
    ours = [staged(1), staged(2)]
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    assert [publisher(session).finish(one).level for one in ours] == [2, 2]
    # The file's earlier vector, the winning commit's vector, and one of each of our executions, whose results were written here.
    assert len(read) == len(set(read)) == 4, read
    assert sorted(row.id for row in session.read.format("delta").load(table).collect()) == [*range(4, 20)]
    read.clear()
    ours = [staged(4), staged(5)]
    rows(session, -1, 200).write.format("delta").mode("append").save(table)
    assert [publisher(session).finish(one).level for one in ours] == [1, 2]
    # The rows of the first winning commit, which statistics do not rule out, and the vectors of both commits.
    assert len(read) == len(set(read)) == 3, read


def test_files_written_on_local_disk_are_as_hadoop_writes_them(session: SparkSession, tmp_path: Path) -> None:
    """Readable to those whom Hadoop's mask says; in new folders; and never in the place of another file."""
    jvm, ours = Jvm(session), tmp_path / "a b" / "ours.bin"
    jvm.hadoop_conf.set("fs.permissions.umask-mode", "007")  # that of the process gives 644, or less
    jvm.write_below(jvm.absolute(tmp_path.as_uri()), "a b/ours.bin", b"one")
    with pytest.raises(JVM_ERRORS):
        jvm.write_below(jvm.absolute(tmp_path.as_uri()), "a b/ours.bin", b"two")
    assert ours.read_bytes() == b"one"
    assert jvm.read_below(jvm.absolute(tmp_path.as_uri()), "a b/ours.bin") == b"one"
    assert ours.stat().st_mode & 0o777 == 0o660


def test_so_many_bytes_of_small_files_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten first, one that is kept again is the newest, and what is longer than all is not remembered."""
    monkeypatch.setattr("lakegate.rows.small_file_cache.REMEMBERED_BYTES_MAX", 10)
    files = Remembered()
    for uri, content in (("a", b"1234"), ("b", b"1234"), ("a", b"12345"), ("c", b"12")):
        files.keep(uri, content)
    assert [files.get(uri) for uri in "abc"] == [b"12345", None, b"12"]
    files.keep("d", b"12345678901")
    assert [files.get(uri) for uri in "abcd"] == [None] * 4
    files.keep("e", b"1234567890")
    assert files.get("e") == b"1234567890"


@pytest.mark.slow
def test_vectors_below_folders_of_random_names_are_found(session: SparkSession, tmp_path: Path) -> None:
    """`delta.randomizeFilePrefixes` has Delta put vectors into folders, below that of the scratch log, too."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true", randomizeFilePrefixes="true")
    rows(session, *range(6)).write.format("delta").mode("append").save(table)
    dml = statement(session, f"UPDATE delta.`{table}` SET v = concat(v, '!') WHERE id >= 3")
    assert dml is not None
    staged = publisher(session).stage(dml)
    rows(session, 7, 8, 1).write.format("delta").mode("append").save(table)
    assert publisher(session).finish(staged).level == 3
    found = {row.id: row.v for row in session.read.format("delta").load(table).where("id > 2").collect()}
    assert found == dict.fromkeys([3, 4, 5, 7, 8], "a!")


@pytest.mark.slow
@pytest.mark.also_without_caches
@pytest.mark.parametrize(("has_vectors", "feed"), [("true", "false"), ("false", "true")])
def test_a_merge_is_executed_again_on_what_came_alone(
    session: SparkSession, tmp_path: Path, has_vectors: str, feed: str
) -> None:
    """Said to a builder: what it did to rows that were there stays, its clauses are asked of those that came, in their order."""
    properties = {"enableDeletionVectors": has_vectors, "enableChangeDataFeed": feed}
    table = make_table(session, tmp_path / "t", **properties)
    rows(session, *range(6)).coalesce(1).write.format("delta").mode("append").save(table)
    source = session.createDataFrame([(id_, "m") for id_ in (0, 1, 10, 11, 12)], "id BIGINT, v STRING").alias("s")
    merge = lakegate.DeltaTable.forPath(session, table).alias("t").merge(source, "t.id = s.id")
    assigned = {"v": "concat(t.v, s.v)"}
    merge = merge.whenMatchedDelete("t.id IN (1, 11)").whenMatchedUpdate("t.v <> 'kept'", assigned)
    assigned["v"] = "'of the caller, for something else'"
    with confs(session, {QUICK_CONF: "off"}):  # a quick one has no overlay
        with collected(session) as collector:
            merge.execute()
        assert collector.staged is not None
        session.sql(f"INSERT INTO delta.`{table}` VALUES (10, 'x'), (11, 'y'), (12, 'kept'), (13, 'z')")
        before = {file.name for file in (tmp_path / "t").glob("*.parquet")}
        result = publisher(session).finish(collector.staged)
    assert (result.level, result.reasons) == (3, (KEYS_CAME,))
    expected = {0: "am", 2: "a", 3: "a", 4: "a", 5: "a", 10: "xm", 12: "kept", 13: "z"}
    assert {row.id: row.v for row in session.read.format("delta").load(table).collect()} == expected
    # Files of the first execution and those of the second, which are in the overlay's folder.
    assert {file.name for file in (tmp_path / "t").glob("*.parquet")} == before
    if feed == "true":
        feeds = session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", result.version)
        images = Counter((row._change_type, row.id) for row in feeds.load(table).collect())
        kinds = ("update_preimage", "update_postimage")
        assert images == Counter([(kind, id_) for kind in kinds for id_ in (0, 10)] + [("delete", 1), ("delete", 11)])


@pytest.mark.slow
def test_a_merge_whose_rows_were_changed_is_executed_again_where_they_are(
    session: SparkSession, tmp_path: Path
) -> None:
    """Rows of a file that another has changed are asked as they are now; so are those that came to hold for its clause."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    rows(session, *range(6)).coalesce(1).write.format("delta").mode("append").save(table)
    text = (
        f"MERGE INTO delta.`{table}` t USING (SELECT id FROM range(4)) s ON t.id = s.id "
        "WHEN MATCHED AND t.v = 'a' THEN UPDATE SET v = concat(t.v, 'm') WHEN MATCHED AND t.v = 'gone' THEN DELETE"
    )
    dml = statement(session, text)
    assert dml is not None
    staged = publisher(session).stage(dml)
    session.sql(f"UPDATE delta.`{table}` SET v = CASE id WHEN 2 THEN 'gone' ELSE 'other' END WHERE id IN (2, 3, 5)")
    session.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    assert publisher(session).finish(staged).level == 3
    found = {row.id: row.v for row in session.read.format("delta").load(table).collect()}
    assert found == {0: "am", 3: "other", 4: "a", 5: "other"}


@pytest.mark.matrix
def test_a_merge_that_adds_a_column_is_not_divided(session: SparkSession, tmp_path: Path) -> None:
    """By the session's setting, of which its clauses say nothing: its commit defines the table, and is computed as a whole."""
    table = make_table(session, tmp_path / "t", enableDeletionVectors="true")
    rows(session, *range(3)).coalesce(1).write.format("delta").mode("append").save(table)
    source = session.createDataFrame([(1, "m", 7), (9, "m", 9)], "id BIGINT, v STRING, w BIGINT").alias("s")
    merge = lakegate.DeltaTable.forPath(session, table).alias("t").merge(source, "t.id = s.id").whenMatchedUpdateAll()
    with confs(session, {"spark.databricks.delta.schema.autoMerge.enabled": "true"}):
        with collected(session) as collector:
            merge.execute()
        assert collector.staged is not None
        session.sql(f"INSERT INTO delta.`{table}` VALUES (9, 'x')")
        assert publisher(session).finish(collector.staged).level == 4
    found = {row.id: (row.v, row.w) for row in session.read.format("delta").load(table).collect()}
    assert found == {0: ("a", None), 1: ("m", 7), 2: ("a", None), 9: ("m", 9)}
